"""Brings the database up to date with run folders and certificates, reading only what changed.

Files are truth. What was read from files that are gone since is kept and marked: only the database has it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.store import scan, steps
from analysis.store.certificates import read_certificate
from analysis.store.database import Build, studies, update
from analysis.store.ingest import Rows, file_rows, read_run
from analysis.store.missing import find_lost, inherit, keeping, named
from analysis.store.scan import CERTIFICATES, Key, Seen, hashed, look, same_content, same_stat
from analysis.store.tables import Ledger, count, forget, insert, read_ledger
from model.disk.folder import run_folders
from model.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Kind:
    """What is collected: runs or certificates.

    Attributes:
        read: (root, files, rows) -> None; adds what the files of one run or certificate say to the rows.
        tables: the tables that hold these rows.
        batch: how many to read at a time: enough for DuckDB to read files in parallel, few enough for memory.
    """

    read: Callable[[Path, Seen, Rows], None]
    tables: tuple[str, ...]
    batch: int


_RUNS = _Kind(read_run, ("run_records", "attempts", "step_records", "files", "quarantine"), 1000)
_CERTIFICATES = _Kind(read_certificate, ("certificates", "verifications", "files", "quarantine"), 50)


@dataclass
class _Done:
    """How many were read and left alone, and how many have lost files since they were read."""

    updated: int
    unchanged: int
    missing: int


@dataclass(frozen=True)
class CollectSummary:
    """What a collect did, and what the database then holds for the studies that were collected.

    Attributes:
        runs, attempts, steps: rows in the database (steps: step records of every attempt).
        quarantined: files that could not be read, including the root's certificates.
        updated: run folders read because they are new or have changed.
        unchanged: run folders left alone.
        missing: runs of which files are gone since they were read; their rows are kept and marked.
        certificates: certificates in the database; they belong to no study.
    """

    runs: int
    attempts: int
    steps: int
    quarantined: int
    updated: int
    unchanged: int
    missing: int
    certificates: int = 0


def collect(root: Path, study: str | None = None, rebuild: bool = False) -> CollectSummary:
    """Bring the database up to date with the run folders and certificates.

    Args:
        root: the workspace.
        study: collect only this study and leave the others' rows alone. Certificates are always collected.
        rebuild: discard the database, with all that no file says any more, and read everything again.

    Raises:
        UserError: there is no such root or study. A file that cannot be read raises nothing: it is listed in
            the table `quarantine` with the reason, and everything else is collected.
    """
    root = root.resolve()
    _check(root, study)

    def work(build: Build) -> CollectSummary:
        done = _collect_runs(build, root, study, drop=rebuild)
        _collect_certificates(build, root, drop=rebuild)
        return _summary(build.connection, study, done)

    return update(root, rebuild, work)


def collect_certificates(root: Path) -> int:
    """Bring only the certificates in the database up to date, and return how many it holds.

    A new database is filled with the runs too: without them it would look complete.

    Raises:
        UserError: there is no such root.
    """
    root = root.resolve()
    _check(root, None)

    def work(build: Build) -> int:
        if build.changed:
            _collect_runs(build, root, None, drop=False)
        _collect_certificates(build, root, drop=False)
        return count(build.connection, "certificates")

    return update(root, False, work)


def _collect_runs(build: Build, root: Path, study: str | None, drop: bool) -> _Done:
    scope = None if build.changed else study  # a new database gets every study
    wanted = f"study <> '{CERTIFICATES}' AND ($1 IS NULL OR study = $1)"
    seen = {found.key: found for found in map(look, run_folders(root, scope)) if found.files}
    inherit(build, root, seen, wanted, _RUNS.tables, drop)
    return _bring(build, root, _RUNS, seen, read_ledger(build.connection, wanted, scope))


def _collect_certificates(build: Build, root: Path, drop: bool) -> None:
    wanted = f"study = '{CERTIFICATES}'"
    seen = {found.key: found for found in scan.certificates(root)}
    inherit(build, root, seen, wanted, _CERTIFICATES.tables, drop)
    _bring(build, root, _CERTIFICATES, seen, read_ledger(build.connection, wanted))


def _check(root: Path, study: str | None) -> None:
    if not root.is_dir():
        raise UserError(f"no folder {root}: launch a study first, or name the workspace with --root")
    if study and not (root / study).is_dir() and study not in (collected := studies(root)):
        names = sorted({folder.path.parent.name for folder in run_folders(root)} | set(collected))
        raise UserError(f"no runs of study '{study}' under {root} {did_you_mean(study, names)}")


def _bring(build: Build, root: Path, kind: _Kind, seen: dict[Key, Seen], known: Ledger) -> _Done:
    """Replace the rows of what changed since the last collect, and mark those whose files are gone."""
    lost = find_lost(build.connection, root, seen, known)
    here = len(seen)
    seen = seen | {key: replace(seen.get(key, Seen(key, ())), lost=files) for key, files in lost.items()}
    stale = [each for key, each in seen.items() if not same_stat(each, known.get(key, {}))]
    gone = [key for key in known if key not in seen]
    forget(build.connection, gone, kind.tables)
    updated = _update(build.connection, root, kind, known, stale)
    build.changed |= bool(stale or gone)
    if lost:
        log.warning(
            "%s: files that were collected are gone; their rows are kept (missing_since)", named(lost)
        )
    return _Done(updated, here - updated, len(lost))


def _update(connection: DuckDBPyConnection, root: Path, kind: _Kind, known: Ledger, stale: list[Seen]) -> int:
    """Replace the rows of what changed, and return how many runs or certificates were read.

    No transaction is needed: this is a copy, which replaces the database only if everything succeeds.
    """
    updated = 0
    for start in range(0, len(stale), kind.batch):
        batch = [_readable(hashed(root, found), known) for found in stale[start : start + kind.batch]]
        touched = [found for found in batch if same_content(found, known.get(found.key, {}))]
        changed = [found for found in batch if not same_content(found, known.get(found.key, {}))]
        forget(connection, [found.key for found in touched], ("files",))
        insert(connection, "files", [row for found in touched for row in file_rows(found)])
        with keeping(connection, changed):
            forget(connection, [found.key for found in changed], kind.tables)
            _read(connection, root, kind, changed)
        updated += len(changed)
    return updated


def _readable(found: Seen, known: Ledger) -> Seen:
    """The same, but as it was read last if its run.json is gone, without which no other file makes sense."""
    if not any(file.path.endswith("/run.json") for file in found.lost):
        return found
    gone = {file.path for file in found.lost}
    return replace(found, files=tuple(file for path, file in known[found.key].items() if path not in gone))


def _read(connection: DuckDBPyConnection, root: Path, kind: _Kind, changed: list[Seen]) -> None:
    rows = Rows()
    for found in changed:
        kind.read(root, found, rows)
    steps.load(connection, root, rows)
    for table in kind.tables:
        if table != "step_records":  # DuckDB has loaded these from the files
            insert(connection, table, getattr(rows, table))


def _summary(connection: DuckDBPyConnection, study: str | None, done: _Done) -> CollectSummary:
    mine = "study = $1 OR $1 IS NULL"
    return CollectSummary(
        runs=count(connection, "run_records", mine, study),
        attempts=count(connection, "attempts", mine, study),
        steps=count(connection, "step_records", mine, study),
        quarantined=count(connection, "quarantine", f"{mine} OR study = '{CERTIFICATES}'", study),
        certificates=count(connection, "certificates"),
        **vars(done),
    )
