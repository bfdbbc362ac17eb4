"""The files of run folders and certificates, found by stat alone, and which of them have changed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from model.disk.folder import RunFolder

_IN_RUN = ("run.json", "ledger.jsonl")
_IN_ATTEMPT = ("manifest.json", "steps.jsonl", "result.json")
CERTIFICATES = ".certificates"  # under the root; no study can have such a name

Key = tuple[str, str]  # study, run_id: the names of the two folders; CERTIFICATES, key for a certificate


@dataclass(frozen=True)
class FileState:
    """One file as the table `files` records it; the hash is empty until it is needed.

    Attributes:
        path: relative to the root, with slashes.
        missing_since: when a collect found it gone; None if it is there.
    """

    path: str
    size_bytes: int
    mtime_ns: int
    sha256: str = ""
    missing_since: datetime | None = None


@dataclass(frozen=True)
class Seen:
    """The record files of one run, or the one file of a certificate.

    Attributes:
        files: those that are there.
        lost: those that were read before and are gone; what was read from them is kept.
    """

    key: Key
    files: tuple[FileState, ...]
    lost: tuple[FileState, ...] = ()


def look(folder: RunFolder) -> Seen:
    """Stat the record files of a run folder, before anything is read: a later write changes the stat."""
    study, run_id = folder.path.parent.name, folder.path.name
    names = [*_IN_RUN, *(f"attempt-{n}/{name}" for n in attempt_numbers(folder) for name in _IN_ATTEMPT)]
    found = (_stat(folder.path / name, f"{study}/{run_id}/{name}") for name in names)
    return Seen((study, run_id), tuple(state for state in found if state))


def certificates(root: Path) -> list[Seen]:
    """Stat the certificates of a root, sorted by name; files still being written have a leading dot."""
    found = []
    for path in sorted((root / CERTIFICATES).glob("[!.]*.json")):
        if state := _stat(path, f"{CERTIFICATES}/{path.name}"):
            found.append(Seen((CERTIFICATES, path.stem), (state,)))
    return found


def attempt_numbers(folder: RunFolder) -> list[int]:
    """Numbers of the attempts that have a folder; none if the run's folder cannot be listed."""
    try:
        return folder.numbers()
    except OSError:  # reading its run.json will say why
        return []


def hashed(root: Path, seen: Seen) -> Seen:
    """The same with the hashes of the contents; a file that cannot be read has an empty one."""
    return replace(seen, files=tuple(replace(file, sha256=_sha256(root / file.path)) for file in seen.files))


def same_stat(seen: Seen, known: dict[str, FileState]) -> bool:
    """Whether every file has the recorded size and time, none is new, and none has gone or come back since.

    A file that could not be read last time counts as changed: chmod leaves its size and time alone.
    """
    return (
        len(seen.files) + len(seen.lost) == len(known)
        and all(known[file.path] == file for file in seen.lost)
        and all(
            (old := known.get(file.path)) is not None and old.sha256 != "" and replace(old, sha256="") == file
            for file in seen.files
        )
    )


def same_content(seen: Seen, known: dict[str, FileState]) -> bool:
    """Whether every hashed file has the recorded content, as in a folder that was copied or touched."""
    return {file.path: file.sha256 for file in (*seen.files, *seen.lost)} == {
        path: old.sha256 for path, old in known.items()
    }


def _stat(file: Path, path: str) -> FileState | None:
    try:
        stat = file.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:  # it exists but is out of reach: reading it will say why
        return FileState(path, -1, -1)
    return FileState(path, stat.st_size, stat.st_mtime_ns)


def _sha256(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""
