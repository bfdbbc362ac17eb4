"""Make a Parquet file with a text column from a folder of text files.

Examples:
  runner data ~/texts --out data/text.parquet
  runner data src --out data/code.parquet --match '*.py' --exclude tests
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from model.record.errors import UserError
from model.record.files import replacing
from model.record.text import PARQUET
from model.record.units import counted
from runner.commands._console import say, show

ROWS_A_GROUP = 256  # a run holds one row group in memory


def command(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder of text files.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The Parquet file to write.")],
    match: Annotated[str, typer.Option(help="File names to include, as a shell pattern.")] = "*",
    exclude: Annotated[list[str] | None, typer.Option(help="Folder names to skip; repeatable.")] = None,
) -> None:
    tally = write_corpus(folder, out, match, exclude or [])
    say(f"{counted(tally.documents, 'document')}, {counted(tally.characters, 'character')}")
    say(f"skipped as not UTF-8: {counted(tally.not_text, 'file')}")
    show(out)


@dataclass
class Tally:
    """Counts of what went into a corpus, and of the files that were skipped."""

    documents: int = 0
    characters: int = 0
    not_text: int = 0


def write_corpus(folder: Path, out: Path, match: str = "*", exclude: Sequence[str] = ()) -> Tally:
    """Write all text files under a folder to `out`, one row per file, with the columns `text` and `path`.

    Args:
        match: file names to include, as a shell pattern.
        exclude: names of folders to skip, at any depth.

    Raises:
        UserError: the folder does not exist, cannot be read or has no matching text, or `out` exists or
            cannot be written. Nothing was written.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    def stop(error: OSError) -> NoReturn:
        """Stop at a folder that cannot be read, instead of silently leaving it out."""
        raise error

    try:
        if not folder.is_dir():
            raise UserError(f"{folder}: {'not a folder' if folder.exists() else 'no such folder'}")
        if out.is_dir():
            raise UserError(f"--out {out} is a folder: add the file's name, as in {out / 'text.parquet'}")
        if os.path.lexists(out):  # it may be what a study's runs were trained on
            raise UserError(f"--out {out} already exists: name another file, or remove that one first")
        if out.suffix not in PARQUET:
            raise UserError(f"--out {out}: this writes Parquet; name it {out.with_suffix(PARQUET[0])}")
        # The files are listed before an unfinished one is among them.
        matching = list[Path]()
        for base, folders, names in os.walk(folder, onerror=stop):
            folders[:] = set(folders) - set(exclude)
            matching += [Path(base, name) for name in fnmatch.filter(names, match)]
        tally = Tally()
        texts = _read_texts(folder, sorted(path for path in matching if path.is_file()), tally)
        out.parent.mkdir(parents=True, exist_ok=True)
        schema = pa.schema([("text", pa.string()), ("path", pa.string())])
        with replacing(out) as aside:
            with pq.ParquetWriter(aside, schema, compression="zstd", write_page_checksum=True) as writer:
                while rows := list(islice(texts, ROWS_A_GROUP)):
                    writer.write_table(pa.Table.from_pylist(rows, schema=schema))
            if not tally.documents:
                raise UserError(f"{folder}: no text file matches '{match}'")
        return tally
    except OSError as error:
        raise UserError(f"{error.filename or out}: {error.strerror or error}") from error


def _read_texts(folder: Path, paths: Sequence[Path], tally: Tally) -> Iterator[dict[str, str]]:
    """Yield a row for each text file, and count them and what is no text."""
    for path in paths:
        try:
            text = path.read_bytes().decode("utf-8-sig")  # a byte-order mark is no text
        except UnicodeDecodeError:
            tally.not_text += 1
            continue
        if text.strip():
            tally.documents += 1
            tally.characters += len(text)
            name = os.fsencode(path.relative_to(folder))  # may be in another encoding
            yield {"text": text, "path": name.decode("utf-8", "replace")}
