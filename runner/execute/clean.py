"""Finds and removes files under a root that can be rebuilt or are no longer needed.

Never removes a run's records or any file of a run in flight, and never follows symbolic links. When in doubt,
a file stays.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import psutil

from analysis.export.unpack import UNPACKING
from analysis.store.scan import REPORTS
from model.record.errors import UserError
from model.record.files import Unreadable
from model.record.folder import DECODED, RunFolder
from model.record.outcome import Outcome
from model.record.records import NAME
from model.record.units import size
from runner.state import ledger
from runner.state.attempts import jobs_folder
from runner.state.code import provenance, snapshot
from runner.state.filesystem import study_lock
from runner.state.ledger import RunState

log = logging.getLogger(__name__)

HOUR_SECONDS = 3600.0
DAY_SECONDS = 24 * HOUR_SECONDS
RECORDS = frozenset({
    "run.json", "ledger.jsonl", "manifest.json", "steps.jsonl", "audits.jsonl", DECODED, "result.json",
    "stdout.log", "stderr.log", "results.duckdb",
})  # fmt: skip
_TEMPORARY = re.compile(r"\..+\.part|checkpoint\.part|\..+?\.(?P<pid>\d{1,9})(?:@(?P<host>.+))?")
_UNPACKED = re.compile(rf"\.?{re.escape(UNPACKING)}\w+\.\d{{1,9}}@.+")  # one dot more while it is removed
_JOB_FILE = re.compile(
    r"(?P<array>\d+)(?:_(?P<index>\d+))?_(?:submitted|submission|next|requeued|\d+_result|\d+_log)\.\w+"
)


@dataclass(frozen=True)
class Item:
    """Something to remove.

    Attributes:
        path: a file, or a folder with all its contents.
        size_bytes: total size of its files.
        inodes: number of files and folders.
        study: folder of the study whose lock must be held to remove it; None outside any study.
    """

    path: Path
    why: str
    size_bytes: int
    inodes: int
    study: Path | None


def plan(root: Path, study: str | None = None) -> list[Item]:
    """List what can be removed, sorted by path. Only reads.

    Args:
        study: the only study to look at; None for all, and for files outside studies.
    """
    root = root.resolve()
    folders = [folder for folder in _folders(root) if NAME.fullmatch(folder.name)]
    chosen = [folder for folder in folders if study in (None, folder.name)]
    items = [item for folder in chosen for item in _in_study(folder)]
    if study is None:
        items += _beside_studies(root)
    return sorted(items, key=lambda item: item.path)


def remove(root: Path, items: Sequence[Item]) -> list[Item]:
    """Remove the planned items that are still removable, and return those removed.

    Raises:
        UserError: some items cannot be removed; all others have been.
    """
    root, gone, problems = root.resolve(), list[Item](), list[str]()
    for study, group in groupby(
        sorted(items, key=lambda item: str(item.study or "")), key=lambda item: item.study
    ):
        with study_lock(study, 0) if study else nullcontext(True) as quiet:
            if study and not quiet:
                log.warning("%s: a launch is running; nothing is removed from this study", study.name)
            # Look again now that no launch can run: an item may have come into use since it was planned.
            now = list(_in_study(study) if study else _beside_studies(root)) if quiet else []
            planned = {item.path for item in group}
            for item in (item for item in now if item.path in planned):
                path = item.path
                try:
                    if _is_folder(path):
                        # Rename first: nobody finds half a snapshot, and the next gc removes what a killed
                        # one leaves.
                        aside = (
                            path if path.name.endswith(".part") else path.with_name(f".{path.name}.gc.part")
                        )
                        path.rename(aside)
                        shutil.rmtree(aside)
                    else:
                        path.unlink(missing_ok=True)
                    gone.append(item)
                except OSError as error:
                    problems.append(f"{item.path}: {error.strerror}")
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise UserError(f"{summary(gone, 'freed')}; cannot remove {problems[0]}{more}")
    return gone


def summary(items: Iterable[Item], verb: str) -> str:
    """`freed 3.2 MiB and 41 inodes`."""
    counted = list(items)
    inodes = sum(item.inodes for item in counted)
    return f"{verb} {size(sum(item.size_bytes for item in counted))} and {inodes:,} inodes"


def rows(root: Path, items: Iterable[Item]) -> list[list[str]]:
    """Table rows: path relative to the root, size, inodes, reason."""
    home = root.resolve()
    return [
        [str(item.path.relative_to(home)), size(item.size_bytes), f"{item.inodes:,}", item.why]
        for item in items
    ]


def _beside_studies(root: Path) -> Iterator[Item]:
    yield from _items(_temporary(root), "left by a command that was killed", None)


def _in_study(study: Path) -> Iterator[Item]:
    states = list[RunState | None]()  # None: a run that cannot be read
    for folder in _folders(study):
        # An empty folder was created by a launch that was killed or has just started.
        if NAME.fullmatch(folder.name) and [*_entries(folder)]:
            run = RunFolder(folder)
            try:
                states.append(ledger.brief_state(run) if run.is_imported else ledger.state(run))
            except (Unreadable, OSError):
                states.append(None)
    for place in (study, study / REPORTS):
        yield from _items(_temporary(place), "left by a command that was killed", study)
    for state in states:
        if not state or state.in_flight:
            continue
        folder = state.folder.path
        attempts = [path for path in _folders(folder) if re.fullmatch(r"attempt-\d+", path.name)]
        for place in (folder, *attempts):
            yield from _items(_temporary(place), "left by a process that was killed", study)
            checkpoint = place / "checkpoint"
            if state.outcome is Outcome.COMPLETED and _is_folder(checkpoint):
                yield from _items([checkpoint], "checkpoint of a completed run", study)
    if None not in states:  # a run that cannot be read may need any of these
        readable = [state for state in states if state]
        job_files = _job_files(jobs_folder(study), readable)
        yield from _items(job_files, "submitit's files of ended attempts", study)
        # Code and provenance that no run refers to and no launch has used recently.
        origins = [state.run.provenance for state in readable if not state.folder.is_imported]
        code = {origin.code for origin in origins}
        kept = {f"{origin.diff}.diff" for origin in origins}
        kept |= {f"{origin.packages}.lock" for origin in origins}
        snapshots, recorded = study / snapshot.FOLDER, study / provenance.FOLDER
        stale = [path for path in _folders(snapshots) if path.name not in code and _is_hash(path.name)]
        yield from _items(filter(_is_old, stale), "code that no run refers to", study)
        yield from _items(_temporary(snapshots), "left by a launch that was killed", study)
        files = [path for path in _files(recorded) if path.name not in kept and _is_hash(path.stem)]
        yield from _items(filter(_is_old, files), "provenance that no run refers to", study)
        yield from _items(_temporary(recorded), "left by a launch that was killed", study)


def _job_files(folder: Path, states: list[RunState]) -> list[Path]:
    """Files of jobs whose runs have all ended; also of unknown jobs, if nothing is in flight."""
    busy, over = set[str](), set[str]()
    for state in states:
        ids = {event.job_id for event in state.folder.ledger if event.job_id}
        ids |= {job_id.partition("_")[0] for job_id in ids}  # the whole array's script
        at_rest = not (state.in_flight or (state.outcome and state.outcome.may_come_back))
        (over if at_rest else busy).update(ids)
    quiet = not any(state.in_flight for state in states)
    files = []
    for path in _files(folder):
        match = _JOB_FILE.fullmatch(path.name)
        ids = {"_".join(part for part in match.groups() if part)} if match else set()
        if (ids & over and not ids & busy) or (quiet and not ids & busy and _is_old(path)):
            files.append(path)

    # Submitit creates links to its scripts. One goes with its script, or if that is already gone.
    going, links = {file.name for file in files}, []
    for path, mode in _entries(folder):
        if stat.S_ISLNK(mode) and re.fullmatch(r"\.submission_file_\w+\.sh", path.name):
            script = path.readlink().name
            if script in going or not (folder / script).exists():
                links.append(path)
    return [*files, *links]


def _is_hash(name: str) -> bool:
    return re.fullmatch(r"[0-9a-f]{64}", name) is not None


def _temporary(folder: Path) -> Iterator[Path]:
    """Old files and folders with temporary names whose writer is no longer running."""
    for path in [*_files(folder), *_folders(folder)]:
        if match := _TEMPORARY.fullmatch(path.name):
            if match["host"] not in (None, os.uname().nodename):  # of its process, nothing can be known here
                left = _is_old(path, DAY_SECONDS)
            else:
                left = _is_old(path) and not (match["pid"] and psutil.pid_exists(int(match["pid"])))
            if left:
                yield path


def _is_old(path: Path, seconds: float = HOUR_SECONDS) -> bool:
    try:
        return path.lstat().st_mtime < time.time() - seconds
    except OSError:
        return False


def _files(folder: Path) -> list[Path]:
    return [path for path, mode in _entries(folder) if stat.S_ISREG(mode)]


def _folders(folder: Path) -> list[Path]:
    return [path for path, mode in _entries(folder) if stat.S_ISDIR(mode)]


def _entries(folder: Path) -> Iterator[tuple[Path, int]]:
    """Path and mode of each entry of a folder; empty if it is a link or cannot be listed."""
    try:
        for path in sorted(folder.iterdir()) if _is_folder(folder) else ():
            yield path, path.lstat().st_mode
    except OSError:
        return


def _is_folder(path: Path) -> bool:
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except OSError:
        return False


def _items(paths: Iterable[Path], why: str, study: Path | None) -> Iterator[Item]:
    """An item for each path, except run records and folders that contain any which no archive has."""
    for path in paths:
        inside = [Path(at, name) for at, folders, files in os.walk(path) for name in (*folders, *files)]
        of_archive = study is None and _UNPACKED.fullmatch(path.name)
        if of_archive or RECORDS.isdisjoint(entry.name for entry in (path, *inside)):
            size_bytes = 0
            for entry in (path, *inside):
                with suppress(OSError):
                    facts = entry.lstat()
                    size_bytes += facts.st_size if stat.S_ISREG(facts.st_mode) else 0
            yield Item(path, why, size_bytes, 1 + len(inside), study)
