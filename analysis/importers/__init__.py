"""The registry of log formats: every file here whose name has no leading underscore is one.

An importer's file defines `importer = Importer(...)`. A new file is a new format. What all formats share,
from a mapping of columns to the folders of runs, knows no format.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path

from analysis.importers._mapping import Mapping, columns_sentence, mapping_by_name
from analysis.importers._reported import check_reported, reported_rows
from analysis.importers._runs import Origin, RunRecords, runs_of
from analysis.importers._study import ImportDesign, Written, write_runs
from analysis.importers._table import LogTable, Refused, content_of, listed_columns, shortened
from model import modules
from model.record.errors import UserError, did_you_mean

__all__ = [
    "ImportDesign",
    "Importer",
    "Mapping",
    "Origin",
    "Refused",
    "RunRecords",
    "Written",
    "check_reported",
    "file_names",
    "load",
    "names",
    "read",
    "reported_rows",
    "shortened",
    "write_runs",
]


@dataclass(frozen=True)
class Importer:
    """How a format is read.

    Attributes:
        title: what it reads, in one line.
        read: the rows of a file; raises Refused.
        mapping: what the format's columns are called, if it says so itself; a user's mapping goes over it.
    """

    title: str
    read: Callable[[Path], LogTable]
    mapping: Mapping = Mapping()  # noqa: RUF009  frozen


@cache
def names() -> tuple[str, ...]:
    """Every format's name, sorted, without importing any."""
    return tuple(modules(Path(__file__).parent))


@cache
def load(name: str) -> Importer:
    """Import one importer.

    Raises:
        UserError: there is no such format, or its file defines no `Importer`.
    """
    if name not in names():
        raise UserError(f"unknown format '{name}' {did_you_mean(name, names())}")
    importer: object = getattr(import_module(f"analysis.importers.{name}"), "importer", None)
    if not isinstance(importer, Importer):
        raise UserError(f"analysis/importers/{name}.py defines no `importer = Importer(...)`")
    return importer


def file_names(files: Sequence[Path]) -> list[str]:
    """What the run of each file is called: as the file, with the folders that tell it from others like it."""
    names, paths = [_plain_name(file) for file in files], [file.absolute() for file in files]
    distinct = list[str]()
    for name, path in zip(names, paths, strict=True):
        namesakes = {other for other, its_name in zip(paths, names, strict=True) if its_name == name}
        shared = os.path.commonpath([other.parent for other in namesakes])
        distinct.append(path.relative_to(shared).as_posix() if len(namesakes) > 1 else name)
    return distinct


def _plain_name(file: Path) -> str:
    """A file's name without its ending, which a folder has none of: `lr0.001`."""
    return file.name if file.is_dir() else file.stem


def read(file: Path, mapping: Mapping, origin: Origin, name: str | None = None) -> list[RunRecords]:
    """The runs of one file, in the format that `origin` names.

    Args:
        name: what to call the run, if the file has one and the mapping has no factors of its name.

    Raises:
        Refused: the file has none.
    """
    importer = load(origin.format)
    if not str(file.absolute()).isprintable():
        raise Refused(f"{str(file)!r}: its name has characters that cannot be shown; rename it")
    table = importer.read(file)

    # What is missing, where a user's mapping names what the file does not have.
    plain_name, columns = _plain_name(file), table.columns()
    if columns:
        for quantity, column in mapping.columns.items():
            if column.column not in columns:
                choices = did_you_mean(column.column, columns)
                table.skip(1, f"{quantity} is unknown: no column '{column.column}' {choices}")
        if mapping.file_name and not re.fullmatch(mapping.file_name, plain_name):
            table.skip(1, f"no factors from its name: '{plain_name}' does not match {mapping.file_name}")

    by_name = mapping_by_name(table, mapping, importer.mapping)
    merged = mapping.over(importer.mapping).over(by_name)
    used = {merged.run, *(column.column for column in merged.columns.values())}
    left_out = [] if mapping.columns else [column for column in columns if column not in used]
    match = re.fullmatch(merged.file_name, plain_name) if merged.file_name else None
    factors = {factor: value for factor, value in (match.groupdict() if match else {}).items() if value}
    if not (seed := factors.get("seed", "0")).isdecimal():
        raise Refused(f"{file}: the seed in its name is '{seed}', not a whole number; change `file_name`")
    sources = {}
    if sentence := columns_sentence(by_name):
        sources["columns"] = f"by their names: {sentence}"
    if left_out:
        sources["left out"] = f"the columns {listed_columns(left_out)}"
    run_name = factors.get("attention") or name or plain_name
    return runs_of(table, merged, _sha256(file), origin, run_name, factors, sources)


def _sha256(file: Path) -> str:
    """The hash of a file's content, or of the names and contents of all files in a folder."""
    if not file.is_dir():
        return hashlib.sha256(content_of(file)).hexdigest()
    digest = hashlib.sha256()
    for path_inside in sorted(path for path in file.rglob("*") if path.is_file()):
        digest.update(f"{path_inside.relative_to(file).as_posix()}\0{_sha256(path_inside)}\0".encode())
    return digest.hexdigest()
