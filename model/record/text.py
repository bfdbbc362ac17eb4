"""A run's text before it is tokens: its file, and a fingerprint of that and of its tokenizer. Torch-free.

The fingerprint covers every byte. One core hashes about 1.2 GiB a second, so a launch hashes a file once, and
records with the digest by what to recognise the file: its inode, size and times. A job compares these, and
reads the whole file again only if they differ, for example after a copy. A write changes them, since nobody
can set a file's ctime. A shared memory mapping may not: its pages can change again without a new time.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import stat
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pydantic import Field

from model.record.config import DataConfig, Frozen
from model.record.errors import UserError, did_you_mean, local_path
from model.record.tokenizer import special_tokens, tokenizer_file, unusable_tokenizer
from model.record.units import first_line

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq
    from numpy.typing import NDArray

    Tokens = NDArray[np.int64]

PARQUET = (".parquet", ".pq")  # how the names of data files end
PIECE = 16 * 2**20  # bytes that a thread hashes at once
_THREADS = 4
_FRESH_NS = 2 * 10**9  # a file changed this recently could change again within one tick of its clock


class Content(Frozen):
    """What a data file holds, and how it is recognised without being read."""

    digest: str = Field(description="SHA-256 over the SHA-256 of each 16 MiB.")
    stamp: str = Field(
        description="Inode, size, mtime and ctime; empty where the file had just been written."
    )


class Position(Frozen):
    """How far a run has read its text; `Batches` continues from exactly that token.

    The tokens left over from packing are always the end of the document that was read last, so this document
    and the number of its used tokens describe all of them.
    """

    epoch: int = Field(0, ge=0)
    row: int = Field(0, ge=0, description="The document to read first, counted in the epoch's own order.")
    used: int = Field(0, ge=0, description="Tokens of that document that earlier samples hold.")


START = Position()


@dataclass(frozen=True)
class Source:
    """Where a run's text comes from, resolved: a run starts in another working directory than its launch.

    Attributes:
        file: the Parquet file.
        tokenizer: `bytes`, an absolute path, or a name on the hub.
        content: of the file when it was last hashed; None if it never was.
    """

    file: Path
    tokenizer: str = "bytes"
    content: Content | None = None

    @staticmethod
    def of(config: DataConfig, folder: Path) -> Source:
        """Resolve a study's data section; relative paths start at the study's folder.

        Raises:
            UserError: a path cannot be followed.
        """
        file = Source.located(config, folder)
        if config.tokenizer == "bytes":
            return Source(file)
        try:
            local = _resolved(folder / local_path(config.tokenizer))
        except UserError as error:
            raise unusable_tokenizer(config.tokenizer, error) from error
        return Source(file, str(local) if _status(local) else config.tokenizer)

    @staticmethod
    def located(config: DataConfig, folder: Path) -> Path:
        """The absolute path of the Parquet file. Raises UserError as `of`."""
        return _resolved(folder / local_path(config.path))

    def checked(self, text_column: str) -> Source:
        """Check the Parquet file, and hash it unless its content is known and the file is recognised.

        Raises:
            UserError: as `Column`, or the file is being written.
        """
        Column(self.file, text_column).close()
        return self if self.recognised else replace(self, content=_content(self.file))

    @property
    def recognised(self) -> bool:
        """Whether the file is still the one whose content is known."""
        status = _status(self.file)
        return bool(self.content and status and self.content.stamp == _stamp(status))

    def confirmed(self, opened: bool) -> Source:
        """Check that a run reads the content that is known; hashes the file again only if its stamp changed.

        Args:
            opened: the run holds the file open, so another file may have taken its place.

        Raises:
            UserError: the file was written to, or replaced before it was opened.
        """
        assert self.content, "checked() hashes the file"
        if self.recognised:
            return self
        status, inode = _status(self.file), self.content.stamp.partition(" ")[0]
        if opened and inode and (status is None or str(status.st_ino) != inode):
            return self
        content = _content(self.file) if status else None
        if content is None or content.digest != self.content.digest:
            raise UserError(f"{self.file} was changed while a run was reading it, so the run stops")
        return replace(self, content=content)

    def fingerprint(self) -> str:
        """Hash of the file's content, the tokenizer and its special tokens; of a source that is checked.

        Raises:
            UserError: the tokenizer cannot be found.
        """
        assert self.content, "checked() hashes the file"
        content = self.content.digest.encode()
        if self.tokenizer != "bytes":
            path, special = tokenizer_file(self.tokenizer), special_tokens(self.tokenizer)
            content += path.read_bytes() + json.dumps(special).encode()
        return hashlib.sha256(content).hexdigest()[:32]


class Column:
    """The text of a Parquet file. Whatever keeps it from being read is told with its file, row group and row.

    Rows and row groups count from 0, as in pyarrow.

    Attributes:
        groups: rows of each row group.

    Raises:
        UserError: the file is missing, empty or not Parquet, or lacks such a column of text.
    """

    def __init__(self, path: Path, name: str) -> None:
        import pyarrow as pa

        self.path, self.name = path, name
        self._file = open_parquet(path)
        self._opened = _status(path)
        with self._readable():
            schema, metadata = self._file.schema_arrow, self._file.metadata
            names = list(schema.names)
            self.groups = [
                int(metadata.row_group(group).num_rows) for group in range(metadata.num_row_groups)
            ]
        if name not in names:
            raise UserError(f"{path} has no column '{name}' {did_you_mean(name, names)}")
        if names.count(name) > 1:
            raise UserError(f"{path} has {names.count(name)} columns named '{name}': rename all but one")
        kind, types = schema.field(name).type, pa.types
        values = kind.value_type if types.is_dictionary(kind) else kind
        if not (types.is_string(values) or types.is_large_string(values) or types.is_string_view(values)):
            raise UserError(f"{path}: column '{name}' holds {kind}, not text")
        if not sum(self.groups):
            raise UserError(f"{path} has no rows")

    @property
    def stored_bytes(self) -> int:
        """Size of the text, uncompressed; text that Parquet stores once for several rows counts once.

        To be asked once some text was read: of an encrypted column, pyarrow ends the process instead.
        """
        metadata = self._file.metadata
        paths = [metadata.schema.column(leaf).path for leaf in range(metadata.num_columns)]
        parts = (
            metadata.row_group(group).column(paths.index(self.name)) for group in range(len(self.groups))
        )
        return sum(int(part.total_uncompressed_size) for part in parts)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_ended: object) -> None:
        self.close()

    def texts(self, group: int) -> pa.ChunkedArray:
        """The texts of one row group, all of them valid; None where a row has none.

        Raises:
            UserError: a page is damaged, or a text is not UTF-8; names the first row.
        """
        with self._readable(group):
            texts = self._file.read_row_group(group, columns=[self.name]).column(self.name)
            texts.validate(full=True)
        return texts

    def check(self) -> None:
        """Read all texts once. Raises UserError as `texts`, or if a row group does not fit in memory."""
        for group, rows in enumerate(self.groups):
            try:
                self.texts(group)
            except MemoryError as error:
                what = f"{self.path}: row group {group}, of {rows:,} rows"
                raise UserError(
                    f"{what}, does not fit in the memory that is free: use smaller ones"
                ) from error

    @contextmanager
    def _readable(self, group: int | None = None) -> Iterator[None]:
        """The one place where reading pages can fail."""
        try:
            yield
        except MemoryError:  # Arrow's own is both
            raise
        except _arrow_errors() as error:
            now = _status(self.path)
            if (
                now
                and self._opened
                and now.st_ino == self._opened.st_ino
                and _stamp(now) != _stamp(self._opened)
            ):
                raise UserError(f"{self.path} was changed while it was being read") from error
            where, why = ("its footer", error) if group is None else self._first_bad(group, error)
            raise UserError(f"{self.path}: {where} cannot be read: {first_line(why)}") from error

    def _first_bad(self, group: int, error: Exception) -> tuple[str, Exception]:
        """The first row that cannot be read, and why; of a large row group, a thousandth that has it."""
        before, rows, good = sum(self.groups[:group]), self.groups[group], 0
        size = max(1, rows // 1000)
        try:
            for batch in self._file.iter_batches(size, row_groups=[group], columns=[self.name]):
                size = 1
                for text in batch.column(0):
                    text.as_py()
                    good += 1
                size = max(1, rows // 1000)
        except UnicodeDecodeError as wrong:
            error = ValueError(f"byte 0x{wrong.object[wrong.start]:02x} is not UTF-8")
        except _arrow_errors() as wrong:
            error = wrong
        first, last = before + good, before + min(good + size, rows) - 1
        place = f"row {first}" if first == last else f"a row from {first} to {last}"
        return f"{place}, in row group {group},", error


def open_parquet(path: Path) -> pq.ParquetFile:
    """Open a Parquet file. Raises UserError if it is missing, no regular file, or not Parquet."""
    import pyarrow.parquet as pq

    status = _status(path)
    if status and stat.S_ISDIR(status.st_mode):
        files = sorted(file for ending in PARQUET for file in path.glob(f"*{ending}"))
        out = _shell_path(Path(f"{path}{PARQUET[0]}"))
        advice = f"`runner data {_shell_path(path)} --out {out}` makes one of its text"
        if files:
            advice = f"name one of its files, such as {_shell_path(files[0])}"
        raise UserError(f"{path} is a folder, not a Parquet file; {advice}")
    named = path if path.suffix in PARQUET else path.with_suffix(PARQUET[0])
    makes = f"; `runner data FOLDER --out {_shell_path(named)}` makes one from a folder of text"
    advice = "" if _status(named) else makes
    if status is None:
        raise UserError(f"{path}: no such file{advice}")
    if not stat.S_ISREG(status.st_mode):
        raise UserError(f"{path} is not a regular file, and a run reads its data more than once{advice}")
    try:
        return pq.ParquetFile(path, page_checksum_verification=True)
    except PermissionError as error:
        raise UserError(f"{path}: {error.strerror}") from error
    except MemoryError:  # Arrow's own is both
        raise
    except _arrow_errors() as error:
        raise UserError(
            f"{path} is not a Parquet file that can be read: {first_line(error)}{advice}"
        ) from error


def _shell_path(path: Path) -> str:
    """How to type a path in a shell: relative if it is in the working directory, and quoted if need be."""
    with suppress(ValueError, OSError):  # it is elsewhere, or that directory is gone
        path = path.relative_to(Path.cwd())
    return shlex.quote(f"./{path}" if str(path).startswith(("-", "~")) else str(path))


def _arrow_errors() -> tuple[type[Exception], ...]:
    """What pyarrow raises of a file that it cannot read; a text that is not UTF-8 is a ValueError."""
    import pyarrow as pa

    return pa.ArrowException, OSError, ValueError, RuntimeError


def _resolved(path: Path) -> Path:
    try:
        return path.resolve()
    except (ValueError, OSError, RuntimeError) as error:  # a null character, a loop of links
        raise UserError(f"{str(path)[:200]!r} is not a path: {error}") from error


def _status(path: Path) -> os.stat_result | None:
    """A file's status; None if it is missing. Raises UserError if the path cannot be followed."""
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise UserError(f"{str(path)[:200]!r}: {getattr(error, 'strerror', error)}") from error


def _stamp(status: os.stat_result) -> str:
    # No device number: nodes number the same network filesystem differently.
    return f"{status.st_ino} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"


def _content(path: Path) -> Content:
    before = path.stat()
    digest = hashlib.sha256()
    with path.open("rb") as file, ThreadPoolExecutor(_THREADS) as threads:

        def piece(start: int) -> bytes:
            return hashlib.sha256(os.pread(file.fileno(), PIECE, start)).digest()

        for piece_digest in threads.map(piece, range(0, before.st_size, PIECE)):
            digest.update(piece_digest)
    if _stamp(path.stat()) != _stamp(before):
        raise UserError(f"{path} is changing while it is read: launch when it is complete")
    fresh = time.time_ns() - max(before.st_mtime_ns, before.st_ctime_ns) < _FRESH_NS
    return Content(digest=digest.hexdigest(), stamp="" if fresh else _stamp(before))
