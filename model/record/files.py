"""Writes and reads records: a reader sees a whole file or none, and whole lines but for a torn last one.

Also locks on open files, and where a user's own files are.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ValidationError

from model.record.errors import UserError

Record = TypeVar("Record", bound=BaseModel)
_PART = 1 << 16  # bytes read at a time
# One for all: `json.dumps` would make another for each value.
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


class Unreadable(UserError):
    """A record's file is missing, torn, or of another schema; the text names the file and the problem."""


def write(path: Path, record: BaseModel) -> None:
    """Write a whole record so that a reader sees the old file or the new one, also after a crash."""
    write_text(path, record.model_dump_json(indent=1) + "\n")


def write_text(path: Path, text: str, sync: bool = True) -> None:
    """Write a whole text file, as `replacing` does."""
    with replacing(path, sync) as aside, open(aside, "w", encoding="utf-8", opener=no_link) as file:
        file.write(text)


@contextmanager
def replacing(path: Path, sync: bool = True) -> Iterator[Path]:
    """Yield a temporary name beside a path; what the body writes there then replaces the path atomically.

    If the body or the disk fails, the old file is still there and the temporary one is gone.

    Args:
        sync: False if many files are written, and are synced together before anything relies on them.
    """
    aside = temporary(path)
    # If others may write here too, somebody could have put a link here to a file that only we can write to.
    aside.unlink(missing_ok=True)
    os.close(no_link(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    try:
        yield aside
        if sync:
            to_disk(aside)
        aside.replace(path)
        if sync:
            try:
                to_disk(path.parent)  # the new name
            except OSError as error:  # some filesystems cannot sync folders
                if error.errno not in (errno.EINVAL, errno.ENOTSUP):
                    raise
    except BaseException:
        with suppress(OSError):
            aside.unlink()
        raise


def no_link(path: str | Path, flags: int) -> int:
    """Open a file that nobody but us can write to; raises OSError if the name is a symbolic link."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o644)


def temporary(path: Path) -> Path:
    """A name beside a path that no other process uses, not even one with the same id on another host."""
    return path.with_name(f".{path.name}.{this_process()}")


def this_process() -> str:
    """`PID@HOST`, by which temporary names say whose they are, so that what a killed process left can go."""
    return f"{os.getpid()}@{os.uname().nodename}"


def to_disk(path: Path) -> None:
    """Wait until a file's content, or a folder's entries, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def append(path: Path, record: BaseModel, sync: bool = False) -> None:
    """Append one line in one write, so that a killed writer tears at most the last line.

    After a torn line, an empty line is written first: it shows that the torn line will never be completed.
    """
    line = (record.model_dump_json() + "\n").encode()
    descriptor = no_link(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    try:
        end = os.fstat(descriptor).st_size
        if end and os.pread(descriptor, 1, end - 1) != b"\n":
            line = b"\n\n" + line
        while line:  # a disk that is full takes a part of it; the next write says so
            line = line[os.write(descriptor, line) :]
        if sync:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read(path: Path | str, kind: type[Record]) -> Record:
    """Read a whole record.

    Raises:
        Unreadable: no such file, torn JSON, or another schema.
    """
    try:
        return kind.model_validate_json(_content(path))
    except (OSError, ValidationError) as error:
        raise Unreadable(f"{path}: {_first_line(error)}") from error


def read_lines(path: Path | str, kind: type[Record]) -> list[Record]:
    """Read a JSONL file; a missing file has no lines, and lines that a killed writer tore are skipped.

    Only the last line, or one before an empty line, can be torn.

    Raises:
        Unreadable: another line is not a record.
    """
    try:
        *whole, _torn = _content(path).split(b"\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise Unreadable(f"{path}: {_first_line(error)}") from error
    records = []
    for line, following in pairwise([*whole, b"."]):
        try:
            if line:
                records.append(kind.model_validate_json(line))
        except ValidationError as error:
            if following:
                raise Unreadable(f"{path}: {_first_line(error)}") from error
    return records


def _content(path: Path | str) -> bytes:
    """A file's bytes. Many small files take half as long as with `open` and its buffers."""
    return b"".join(_parts(path))


def _parts(path: Path | str) -> Iterator[bytes]:
    descriptor = open_regular(path)
    try:
        yield from iter(partial(os.read, descriptor, _PART), b"")
    finally:
        os.close(descriptor)


def require_regular(path: str) -> None:
    """Raise Unreadable if the path is not a regular file: a pipe or a device may never end."""
    try:
        _require_regular_status(os.stat(path))  # noqa: PTH116  strings
    except OSError as error:
        raise Unreadable(f"{path}: {_first_line(error)}") from error


def open_regular(path: Path | str, flags: int = os.O_RDONLY) -> int:
    """Open a file for reading. Raises OSError if that fails, or it is not a regular file."""
    descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe would wait for a writer
    try:
        _require_regular_status(os.fstat(descriptor))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _require_regular_status(status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file")


def is_plain(path: Path) -> bool:
    """Whether the path is a regular file, and no link to one."""
    return path.is_file() and not path.is_symlink()


def tail(path: Path | str, size: int) -> bytes:
    """At most the last `size` bytes of a file. Raises OSError if it cannot be read."""
    descriptor = open_regular(path)
    try:
        end = os.lseek(descriptor, 0, os.SEEK_END)
        return os.pread(descriptor, size, max(0, end - size))
    finally:
        os.close(descriptor)


def require_own_folder(folder: Path, marks: Sequence[str], what: str) -> None:
    """Check that a folder is empty but for hidden files, or holds what we wrote there before.

    Args:
        marks: files of which our folders have at least one.
        what: what we write, for the error.

    Raises:
        UserError: it holds something else, with which our files would mix.
    """
    names = (
        [path.name for path in folder.iterdir() if not path.name.startswith(".")] if folder.is_dir() else []
    )
    if names and not any((folder / mark).is_file() for mark in marks):
        raise UserError(
            f"{folder} holds other files, such as {min(names)}, but no {what}: name a new or empty folder"
        )


def sha256(path: Path | str) -> str:
    """Hash of a file's content, hexadecimal. Raises OSError if it cannot be read."""
    digest = hashlib.sha256()
    for part in _parts(path):
        digest.update(part)
    return digest.hexdigest()


def _first_line(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        return f"{where + ': ' if where else ''}{first['msg']}"
    return (getattr(error, "strerror", None) or str(error)).splitlines()[0]


def dumps(value: Any) -> str:
    """Canonical JSON: sorted keys, no spaces, so that equal values have equal text and hash."""
    return _CANONICAL.encode(value)


def hold_lock(
    descriptor: int,
    wait_seconds: float | None = None,
    poll_seconds: float = 0.1,
    waiting: Callable[[], None] = lambda: None,
) -> bool:
    """Take a file's lock; returns whether it could be had in time. Closing the descriptor releases it.

    The kernel, or an NFS mount's server, releases the lock of a process that dies.

    Args:
        wait_seconds: how long to try again while another process holds it; None: until it is free.
        waiting: called once, if another process holds it.

    Raises:
        OSError: the filesystem has no locks.
    """
    if _taken(descriptor):
        return True
    waiting()
    if wait_seconds is None:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        return True
    until = time.monotonic() + wait_seconds
    while time.monotonic() <= until:
        time.sleep(poll_seconds)
        if _taken(descriptor):
            return True
    return False


def _taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def user_folder(kind: Literal["cache", "state"]) -> Path:
    """This user's folder for one kind of files, by the XDG Base Directory Specification. It may be missing.

    Raises:
        OSError: the user has no home, as in some containers.
    """
    given = os.environ.get(f"XDG_{kind.upper()}_HOME", "")
    if given.startswith("/"):  # the specification: a relative path is invalid and counts as unset
        return Path(given, "assay")
    try:
        return Path.home() / {"cache": ".cache", "state": ".local/state"}[kind] / "assay"
    except RuntimeError as error:
        raise OSError(errno.ENOENT, "this user has no home folder") from error
