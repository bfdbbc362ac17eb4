"""Puts the runs of an archive into a workspace. Nothing in such a file is trusted."""

from __future__ import annotations

import gzip
import os
import re
import tarfile
import zlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import IO, Any, cast

from analysis.export.pack import LOGS, OF_ATTEMPT, OF_RUN
from analysis.store.database import NAME as NAME_OF_DATABASE
from analysis.store.scan import CERTIFICATES, NODES
from model.attention.verify.certificate import Certificate
from model.record.errors import UserError
from model.record.files import Unreadable, is_plain, no_link, read, this_process
from model.record.folder import STUDY, RunFolder, study_record
from model.record.records import NAME

SUFFIXES = (".tar.gz", ".tgz")
_NAME = NAME.pattern
PLAN, LEDGER = "run.json", "ledger.jsonl"
UNPACKING = ".unpacking-"  # begins the name of a folder with what an archive still has


def _any(names: set[str]) -> str:
    return f"({'|'.join(map(re.escape, sorted(names)))})"


_PATH = re.compile(
    rf"{_NAME}/{_NAME}/({_any(OF_RUN)}|attempt-\d{{1,6}}/{_any(OF_ATTEMPT | LOGS)})"
    rf"|{_NAME}/{re.escape(STUDY)}"
    rf"|{_NAME}/{re.escape(NODES)}/[0-9a-f]{{64}}\.json"
    rf"|{re.escape(CERTIFICATES)}/{_NAME}\.json|{_NAME}/\.provenance/[0-9a-f]{{64}}\.(lock|diff)"
)
# Records compress to a tenth. Anything that grows far more than that was made to fill a disk.
_MOST_GROWTH, _LEAST_ALLOWED = 200, 64 * 2**20
_SHOWN = 5  # runs that a message names


@dataclass(frozen=True)
class Unpacked:
    """What came out of an archive.

    Attributes:
        study: its name.
        added: runs that were not there before.
        continued: runs that were, and of which the archive knows more: later attempts, or how one ended.
        there: runs that were, with these records or with more.
        certificates: certificates that were not there before.
    """

    study: str
    added: int
    continued: int
    there: int
    certificates: int


def unpack(archive: Path, root: Path) -> Unpacked:
    """Put the runs of an archive into a workspace, all or none of them.

    Runs may travel between machines, and come back more than once. A run that is there with the same records,
    or with these and later ones, is left alone. So is a certificate with the same key. What an archive knows
    of a run beyond the records that are there is added to them.

    Raises:
        UserError: it is no such archive, holds anything else or grows too much; or a run that is there
            already went on otherwise. Nothing was written.
    """
    if not os.path.lexists(archive):
        raise UserError(f"{archive}: no such file")
    if not is_plain(archive):  # to open a pipe could wait for ever
        raise UserError(f"{archive} is not a file: name the archive itself")
    root.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=UNPACKING, suffix=f".{this_process()}", dir=root) as scratch:
        folder = Path(scratch)
        _extract(archive, folder)
        try:
            study = _study(archive, folder)
        except Unreadable as error:  # it names where the file was unpacked to
            message = str(error).removeprefix(f"{folder}/")
            raise UserError(f"{archive}: {message}: nothing was unpacked") from error
        source, target = folder / study, root / study
        present = [run for run in _run_folders(source) if os.path.lexists(target / run.name)]
        new = [run for run in _run_folders(source) if run not in present]
        continued = [run for run in present if not _has_records(target / run.name, run)]
        if conflicting := [run.name for run in continued if not _can_continue(target / run.name, run)]:
            names = ", ".join(f"{study}/{run}" for run in conflicting[:_SHOWN])
            names += ", ..." * (len(conflicting) > _SHOWN)
            raise UserError(
                f"{archive}: runs of these names already exist with different records: {names}: "
                f"unpack it into another root, or first remove those of {target} that it should replace"
            )
        try:
            first = not target.exists()
            (target / ".provenance").mkdir(parents=True, exist_ok=True)
            if first and (source / STUDY).exists():  # else the launch of the runs there knows better
                (source / STUDY).rename(target / STUDY)
            certificates = _add_files(folder / CERTIFICATES, root / CERTIFICATES)
            for name in (".provenance", NODES):
                _add_files(source / name, target / name)
            for run in new:
                run.rename(target / run.name)
            for run in continued:
                _add_records(run, target / run.name)
        except OSError as error:
            raise UserError(f"{archive}: {error.filename}: {error.strerror}: use another root") from error
        return Unpacked(study, len(new), len(continued), len(present) - len(continued), certificates)


def _run_folders(study: Path) -> list[Path]:
    return sorted(path for path in study.iterdir() if NAME.fullmatch(path.name))


def _study(archive: Path, folder: Path) -> str:
    """The one study of an archive, each of whose runs says that it belongs there."""
    names = [path.name for path in folder.iterdir() if NAME.fullmatch(path.name)]
    if len(names) != 1:
        raise UserError(f"{archive} holds runs of {len(names) or 'no'} studies, where one is expected")
    if names[0] == NAME_OF_DATABASE:
        raise UserError(f"{archive}: no study can be called {names[0]}: nothing was unpacked")
    for path in _run_folders(folder / names[0]):
        run = RunFolder(path)
        plan = run.imported if run.is_imported else run.run
        if (plan.study, plan.run_id) != (names[0], path.name):
            raise UserError(f"{archive}: {names[0]}/{path.name} says it is {plan.study}/{plan.run_id}")
    if (record := study_record(folder, names[0])) and record.study != names[0]:
        raise UserError(f"{archive}: {names[0]}/{STUDY} says it is of study {record.study}")
    for path in (folder / CERTIFICATES).glob("*.json"):
        if (certificate := read(path, Certificate)).key != path.stem:
            raise UserError(f"{archive}: certificate {path.stem} says it is {certificate.key}")
    return names[0]


def _has_records(run: Path, other: Path) -> bool:
    """Whether a run has all records of another copy of it, or more, but for the plan, which a launch renews.

    Records are only ever added: whole files, and lines at the end of those that have lines.
    """
    return all(_continues(run / path.relative_to(other), path) for path in _records(other))


def _continues(path: Path, other: Path) -> bool:
    """Whether a file is the same as another one, or has more lines after its lines."""
    if not path.is_file():
        return False
    content, start = path.read_bytes(), other.read_bytes()
    return content == start or (path.suffix == ".jsonl" and content.startswith(start))


def _can_continue(run: Path, other: Path) -> bool:
    """Whether what another copy of a run has beyond it may be added; nothing is written through a link."""
    plain = not any(path.is_symlink() for path in (run, *run.glob("attempt-*")))
    return plain and (run / PLAN).is_file() and _has_records(other, run)


def _records(run: Path) -> list[Path]:
    """A run's records, apart from its plan; some folders of attempts also hold logs and checkpoints."""
    places = [(run, OF_RUN - {PLAN}), *((attempt, OF_ATTEMPT) for attempt in run.glob("attempt-*"))]
    return [place / name for place, names in places for name in sorted(names) if (place / name).is_file()]


def _add_records(run: Path, target: Path) -> None:
    """Move what a copy of a run has beyond the records in the target.

    The ledger comes last: an archive whose unpacking was interrupted can be unpacked again.
    """
    for path in (*run.glob("attempt-*/*"), run / PLAN, run / LEDGER):
        moved = target / path.relative_to(run)
        if path.exists() and not (path.name in LOGS and moved.exists()):
            moved.parent.mkdir(exist_ok=True)
            path.rename(moved)


def _add_files(source: Path, target: Path) -> int:
    """Move files to where there is none of that name; returns how many."""
    if not source.is_dir():
        return 0
    target.mkdir(parents=True, exist_ok=True)
    new = [path for path in sorted(source.iterdir()) if not (target / path.name).exists()]
    for path in new:
        path.rename(target / path.name)
    return len(new)


def _extract(archive: Path, folder: Path) -> None:
    """Write the files of an archive below a folder of our own; none can end up elsewhere."""
    try:
        with open(archive, "rb", opener=no_link) as raw, gzip.GzipFile(fileobj=raw) as unzipped:
            allowed = max(_LEAST_ALLOWED, _MOST_GROWTH * archive.stat().st_size)
            plain = _Limited(unzipped, allowed, archive)
            with tarfile.open(fileobj=cast(Any, plain), mode="r|") as tar:
                for entry in tar:
                    if entry.isdir():
                        continue
                    # A sparse file can say that it has any number of zeros.
                    source = tar.extractfile(entry) if entry.isreg() and not entry.issparse() else None
                    if source is None or not _PATH.fullmatch(entry.name):
                        what = f"{entry.name!r} is not a file of a run"
                        raise UserError(f"{archive}: {what}: nothing was unpacked")
                    _write(folder.joinpath(*PurePosixPath(entry.name).parts), source, archive)
                # What comes after the last file: only at its end does gzip compare its checksum.
                while block := plain.read(1 << 20):
                    if block.strip(b"\0"):
                        raise UserError(f"{archive} has data after its end: nothing was unpacked")
    except (tarfile.TarError, EOFError, OSError, ValueError, zlib.error) as error:
        raise UserError(f"{archive} cannot be unpacked: {error}") from error


def _write(path: Path, source: IO[bytes], archive: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("xb") as file:
            if path.suffix == ".diff":
                path.chmod(0o600)  # uncommitted changes are for their owner alone
            while block := source.read(1 << 20):
                file.write(block)
    except FileExistsError as error:
        raise UserError(f"{archive} has {path.name} twice in one folder: nothing was unpacked") from error


class _Limited:
    """A stream that refuses to give more than so many bytes."""

    def __init__(self, source: gzip.GzipFile, allowed: int, archive: Path) -> None:
        self._source, self._left, self._archive = source, allowed, archive

    def read(self, size: int = -1) -> bytes:
        content = self._source.read(size)
        self._left -= len(content)
        if self._left < 0:
            raise UserError(
                f"{self._archive} grows more than {_MOST_GROWTH}-fold: it holds no records of runs"
            )
        return content
