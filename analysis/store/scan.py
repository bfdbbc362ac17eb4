"""The files of run folders, certificates and nodes, found by stat alone, and which of them have changed."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from model.record.files import sha256
from model.record.folder import DECODED, FRONTIER, KERNELS, PROFILE, STUDY, RunFolder, folders
from model.record.speed import CEILINGS_FOLDER

IN_RUN = ("run.json", "ledger.jsonl")
IN_ATTEMPT = (
    *("manifest.json", "steps.jsonl", "audits.jsonl", "result.json"),
    *(PROFILE, KERNELS, FRONTIER, DECODED),
)
# Instead of the hash of step records: to hash them took as long as half of what DuckDB needs to load them.
UNHASHED = "not hashed"
CERTIFICATES = ".certificates"  # under the root; no study can have such a name
NODES = CEILINGS_FOLDER  # under a study

REPORTS = ".reports"  # under a study: the records of reports that were collected, a folder each
OF_REPORT = re.compile(r"\d{4}-[0-9a-f]{12}")  # such a folder: in which order it was collected, and `digest`
RUNS_OF_REPORT = "run_records.parquet"

# study, run_id: names of the two folders; CERTIFICATES, key for a certificate; study, NODES/key of a node;
# study, STUDY for what its last launch left; study, REPORTS/name for a report that was collected
Key = tuple[str, str]


class FileState(NamedTuple):
    """One file as the table `files` records it; the hash is empty until it is needed.

    Attributes:
        path: relative to the root, with slashes.
        sha256: of the content; `UNHASHED` for step records, empty if the file could not be read.
        missing_since: when a collect found it gone; None if it is there.
    """

    path: str
    size_bytes: int
    mtime_ns: int
    sha256: str = ""
    missing_since: datetime | None = None


FilesByPath = dict[str, FileState]


@dataclass(frozen=True)
class SourceFiles:
    """The files of one source of rows: of a run or a report, or the one file of a certificate, node or study.

    Attributes:
        files: those that are there.
        lost: those that were read before and are gone; what was read from them is kept.
        newest: the highest number of an attempt that has a folder; 0 without any.
    """

    key: Key
    files: tuple[FileState, ...]
    lost: tuple[FileState, ...] = ()
    newest: int = 0

    @property
    def states(self) -> tuple[FileState, ...]:
        """All of them, as the table `files` is to have them."""
        return *self.files, *self.lost


def stat_run(folder: RunFolder) -> SourceFiles:
    """Stat the record files of a run folder, before anything is read: a later write changes the stat.

    The times of folders tell nothing: an append to a file leaves them as they are. Paths are strings: over
    10,000 runs, Path objects took longer than the system calls.
    """
    base = os.fspath(folder)
    study, run_id = base.rsplit("/", 2)[1:]
    attempts = attempt_numbers(folder)
    names = [*IN_RUN, *(f"attempt-{n}/{name}" for n in attempts for name in IN_ATTEMPT)]
    states = [_stat(f"{base}/{name}", f"{study}/{run_id}/{name}") for name in names]
    newest = max(attempts, default=0)
    return SourceFiles((study, run_id), tuple(state for state in states if state), newest=newest)


def stat_certificates(root: Path) -> list[SourceFiles]:
    """Stat the certificates of a root, sorted by name; files still being written have a leading dot."""
    return list(_stat_json_files(root, CERTIFICATES))


def stat_nodes(root: Path, study: str | None) -> list[SourceFiles]:
    """Stat the measured ceilings of a study's nodes, or of all studies', sorted by name."""
    names = [study] if study else folders(root)
    return [node for name in names for node in _stat_json_files(root, name, f"{NODES}/")]


def stat_studies(root: Path, study: str | None) -> list[SourceFiles]:
    """Stat what the last launch of a study, or of each study, left."""
    names = [study] if study else folders(root)
    states = [(name, _stat(f"{root}/{name}/{STUDY}", f"{name}/{STUDY}")) for name in names]
    return [SourceFiles((name, STUDY), (state,)) for name, state in states if state]


def stat_reports(root: Path, study: str | None) -> list[SourceFiles]:
    """Stat the records of reports that were collected, of a study or of all, the last one last."""
    names, reported = [study] if study else folders(root), list[SourceFiles]()
    for name in names:
        for folder in sorted((root / name / REPORTS).glob("*")):
            if OF_REPORT.fullmatch(folder.name):
                place = f"{REPORTS}/{folder.name}"
                paths = sorted({*folder.glob("[a-z]*.parquet"), folder / RUNS_OF_REPORT})
                states = [_stat(str(path), f"{name}/{place}/{path.name}") for path in paths]
                reported.append(SourceFiles((name, place), tuple(state for state in states if state)))
    return reported


def digest(folder: Path) -> str:
    """The end of the name of a report's folder: the start of a hash of the hashes of its records."""
    hashes = [sha256(path) for path in sorted(folder.iterdir())]
    return hashlib.sha256(" ".join(hashes).encode()).hexdigest()[:12]


def reported_plans(root: Path, study: str, *columns: str) -> list[dict[str, Any]]:
    """Columns of `run_records` of the runs of reports that were collected, as far as these can be read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    plans = []
    for report in stat_reports(root, study):
        with suppress(pa.ArrowException, OSError):  # a collect says why
            path = root / study / report.key[1] / RUNS_OF_REPORT
            plans += pq.read_table(path, columns=list(columns)).to_pylist()
    return plans


def _stat_json_files(root: Path, owner: str, below: str = "") -> Iterator[SourceFiles]:
    for path in sorted((root / owner / below).glob("[!.]*.json")):
        if state := _stat(str(path), f"{owner}/{below}{path.name}"):
            yield SourceFiles((owner, f"{below}{path.stem}"), (state,))


def attempt_numbers(folder: RunFolder) -> list[int]:
    """Numbers of the attempts that have a folder; empty if the run's folder cannot be listed."""
    try:
        return folder.numbers()
    except OSError:  # reading its run.json will say why
        return []


def with_hashes(root: Path, source: SourceFiles) -> SourceFiles:
    """The source with the hashes of its files' contents; a file that cannot be read has an empty one."""

    def digest(path: str) -> str:
        if path.endswith("/steps.jsonl"):
            return UNHASHED if os.access(path, os.R_OK) else ""
        try:
            return sha256(path)
        except OSError:
            return ""

    files = tuple(file._replace(sha256=digest(f"{root}/{file.path}")) for file in source.files)
    return replace(source, files=files)


def same_stat(source: SourceFiles, recorded: FilesByPath) -> bool:
    """Whether every file has the recorded size and time, none is new, and none has gone or come back since.

    A file that could not be read last time counts as changed: chmod leaves its size and time alone.
    """
    return (
        len(source.states) == len(recorded)
        and all(recorded[file.path] == file for file in source.lost)
        and all(
            (old := recorded.get(file.path)) is not None
            and old.sha256 != ""
            and old._replace(sha256="") == file
            for file in source.files
        )
    )


def same_content(source: SourceFiles, recorded: FilesByPath) -> bool:
    """Whether every hashed file has the recorded content, as in a folder that was copied or touched."""
    return {file.path: _content(file) for file in source.states} == {
        path: _content(old) for path, old in recorded.items()
    }


def _content(file: FileState) -> str | tuple[str, int, int]:
    return file[:3] if file.sha256 == UNHASHED else file.sha256


def _stat(file: str, path: str) -> FileState | None:
    try:
        stat = os.stat(file)  # noqa: PTH116  strings
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:  # it exists but is out of reach: reading it will say why
        return FileState(path, -1, -1)
    return FileState(path, stat.st_size, stat.st_mtime_ns)
