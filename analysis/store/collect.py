"""Brings the database up to date with run folders, certificates and nodes, reading only what changed.

Files are truth. What was read from files that are gone since is kept and marked: only the database has it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from analysis.store import reports, scan, steps
from analysis.store.certificates import read_certificate, read_node
from analysis.store.database import Build, in_memory, open_for_reading, studies, sweep, update
from analysis.store.ingest import Rows, file_rows, read_run, read_study
from analysis.store.missing import KINDS, find_lost, inherit, keeping, kind_of, named
from analysis.store.scan import (
    CERTIFICATES,
    Key,
    SourceFiles,
    same_content,
    same_stat,
    stat_run,
    with_hashes,
)
from analysis.store.tables import (
    ATTEMPT_TABLES,
    OF_CERTIFICATES,
    OF_NODES,
    OF_REPORTS,
    OF_RUNS,
    OF_STUDIES,
    RecordedFiles,
    count,
    forget,
    insert,
    recorded_files,
)  # fmt: skip
from model.record.errors import UserError, no_runs
from model.record.folder import RunFolder, run_folders
from model.record.outcome import Outcome

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

Settle = Callable[[list[Key]], object]
_BATCH_BYTES = 512 * 2**20
T = TypeVar("T")
log = logging.getLogger(__name__)
# What could not be read may be readable now: chmod leaves a file's size and time alone.
_HELD_FILES = f"""\
SELECT path, size_bytes, mtime_ns FROM files
WHERE ({OF_CERTIFICATES} OR $1 IS NULL OR study = $1) AND missing_since IS NULL AND sha256 <> ''"""
_LOST = f"""\
SELECT DISTINCT study, run_id FROM files
WHERE ({OF_CERTIFICATES} OR $1 IS NULL OR study = $1) AND missing_since IS NOT NULL"""
# Whether the job of such an attempt goes on, or why it was stopped, only its ledger says.
_STOPPED = [outcome.value for outcome in Outcome if outcome.may_come_back]
_SETTLED = f"""\
SELECT study, run_id, coalesce(max(attempt), 0) FROM run_records LEFT JOIN attempts USING (study, run_id)
WHERE $1 IS NULL OR study = $1 GROUP BY ALL HAVING coalesce(arg_max(
    outcome IS NOT NULL AND (job_id IS NULL OR outcome NOT IN {(*_STOPPED,)}), attempt), true)"""


@dataclass(frozen=True)
class RowCounts:
    """Rows in the database for the studies that were collected.

    Attributes:
        steps: step records of every attempt.
        quarantined: files that could not be read, including the root's certificates.
        certificates: of the root; they belong to no study.
    """

    runs: int
    attempts: int
    steps: int
    quarantined: int
    certificates: int


@dataclass(frozen=True)
class HeldRows:
    """What the database holds of one study and all certificates, or of everything.

    Attributes:
        files: path, size in bytes and time of every file that was read and is not known to be gone.
        settled: the newest attempt of each run that is neither in flight nor in doubt; 0 before the first.
        lost: runs and certificates of which files are gone.
    """

    files: frozenset[tuple[str, int, int]]
    settled: dict[Key, int]
    lost: frozenset[Key]
    counts: RowCounts

    def differing(self, sources: Iterable[SourceFiles]) -> set[Key]:
        """The runs whose files are no longer those that were read.

        Certificates are among them too, by the name of the file.
        """
        on_disk = [(file.path, file.size_bytes, file.mtime_ns) for source in sources for file in source.files]
        differ = self.files.symmetric_difference(on_disk)
        return {(study, run) for study, run, *_ in (path.split("/", 2) for path, *_ in differ)}

    def is_settled(self, run: SourceFiles) -> bool:
        """Whether no attempt of a run, whose files are as they were read, can still need an outcome.

        A new attempt shows as a folder, which a launcher makes before anything else. Also on NFS, to list the
        run's folder gives what is there now, while the size and time of a file may be some seconds old.
        """
        return self.settled.get(run.key) == run.newest and run.key not in self.lost


def read_held(root: Path, study: str | None) -> HeldRows | None:
    """What the database holds; None if there is none, or one that has to be built anew."""
    import duckdb

    try:
        with open_for_reading(root) as connection:
            files = connection.execute(_HELD_FILES, [study]).fetchall()
            settled = connection.execute(_SETTLED, [study]).fetchall()
            lost = connection.execute(_LOST, [study]).fetchall()
            rows = count_rows(connection, study)
    except (UserError, duckdb.Error):
        return None
    return HeldRows(frozenset(files), {row[:2]: row[2] for row in settled}, frozenset(lost), rows)


def count_rows(connection: DuckDBPyConnection, study: str | None) -> RowCounts:
    """Count what the database holds of one study and all certificates, or of everything."""
    in_scope = "study = $1 OR $1 IS NULL"
    return RowCounts(
        runs=count(connection, "run_records", in_scope, study),
        attempts=count(connection, "attempts", in_scope, study),
        steps=count(connection, "step_lines JOIN step_files USING (file)", in_scope, study),
        quarantined=count(connection, "quarantine", f"{in_scope} OR study = '{CERTIFICATES}'", study),
        certificates=count(connection, "certificates"),
    )


@dataclass(frozen=True)
class _Kind:
    """A kind of source: runs, certificates, nodes or studies.

    Attributes:
        read: (root, source, rows) -> None; adds what the files of a source say to the rows.
        condition: on the table `files`, picks the files of such sources, of study $1 if any.
        tables: the tables that hold these rows.
        batch: how many to read at a time: enough for DuckDB to read files in parallel, few enough for memory.
    """

    read: Callable[[Path, SourceFiles, Rows], None]
    condition: str
    tables: tuple[str, ...]
    batch: int


_OF_RUN = ("run_records", *ATTEMPT_TABLES, *steps.STEP_TABLES, "files", "quarantine")
_IN_SCOPE = "($1 IS NULL OR study = $1)"
_RUNS = _Kind(read_run, f"{OF_RUNS} AND {_IN_SCOPE}", _OF_RUN, 1000)
_CERTIFICATES = _Kind(
    read_certificate,
    OF_CERTIFICATES,
    ("certificates", "verifications", "files", "quarantine"),
    50,
)
_STUDIES = _Kind(read_study, f"{OF_STUDIES} AND {_IN_SCOPE}", ("removed_runs", "files", "quarantine"), 50)
_NODES = _Kind(read_node, f"{OF_NODES} AND {_IN_SCOPE}", ("nodes", "files", "quarantine"), 50)


@dataclass(frozen=True)
class _SourceCounts:
    """What a collect did with the sources of a kind.

    Attributes:
        updated: read because they are new or have changed.
        unchanged: left alone.
        missing: of which files are gone since they were read; their rows are kept and marked.
    """

    updated: int
    unchanged: int
    missing: int


@dataclass(frozen=True)
class CollectSummary(RowCounts, _SourceCounts):
    """What a collect did with run folders, and what the database then holds of the studies collected."""


def collect(
    root: Path, study: str | None = None, rebuild: bool = False, settle: Settle | None = None
) -> CollectSummary:
    """Bring the database up to date with the run folders and certificates.

    Args:
        root: the workspace.
        study: collect only this study and leave the others' rows alone. Certificates are always collected.
        rebuild: discard the database, with all that no file says any more, and read everything again.
        settle: called before anything is read, with the runs that may have ended without a record of it;
            it may write to their ledgers how they did.

    Raises:
        UserError: there is no such root or study. A file that cannot be read raises nothing: it is listed in
            the table `quarantine` with the reason, and everything else is collected.
    """
    root = root.resolve()
    _check(root, study)
    held = None if rebuild else read_held(root, study)
    if held:
        if summary := _summary_if_unchanged(root, study, held, settle):
            sweep(root)  # left by a collect that was killed when its work was in place
            return summary
    elif settle:
        settle([(folder.path.parent.name, folder.path.name) for folder in run_folders(root, study)])

    def work(build: Build) -> CollectSummary:
        runs = _collect_runs(build, root, study, drop=rebuild)
        _collect_certificates(build, root, drop=rebuild)
        reports.bring(build, root)
        return CollectSummary(**vars(count_rows(build.connection, study)), **vars(runs))

    return update(root, rebuild, work)


def collect_certificates(root: Path) -> None:
    """Bring only the certificates in the database up to date.

    A new database is filled with the runs too: without them it would look complete.

    Raises:
        UserError: there is no such root.
    """
    root = root.resolve()
    _check(root, None)

    def work(build: Build) -> None:
        if build.changed:
            _collect_runs(build, root, None, drop=False)
        _collect_certificates(build, root, drop=False)
        reports.bring(build, root)

    update(root, False, work)


def read_folders(root: Path, study: str | None) -> DuckDBPyConnection:
    """A database in memory with what one study's run folders and all certificates say now.

    Args:
        study: None for the certificates alone.

    Raises:
        UserError: there is no such root, or no run of that study in it.
    """
    root = root.resolve()
    if not root.is_dir() or (study and not (root / study).is_dir()):
        raise UserError(f"no run folders of study '{study}' under {root}: name the workspace with --root")
    build = Build(in_memory(sandboxed=False))
    if study:
        _collect_runs(build, root, study, drop=False)
    _collect_certificates(build, root, drop=False)
    if study:
        reports.bring(build, root)
    return build.connection


def _summary_if_unchanged(
    root: Path, study: str | None, held: HeldRows, settle: Settle | None
) -> CollectSummary | None:
    """What the database holds, if that is all that the files say. It is only read, so nobody has to wait."""
    runs = [stat_run(folder) for folder in run_folders(root, study)]
    others = [*scan.stat_certificates(root), *scan.stat_nodes(root, study), *scan.stat_studies(root, study)]
    others += scan.stat_reports(root, study)
    differ = held.differing([*runs, *others])
    in_doubt = [run.key for run in runs if run.key in differ or not held.is_settled(run)]
    if settle and in_doubt:
        settle(in_doubt)
        now = {key: stat_run(RunFolder(f"{root}/{key[0]}/{key[1]}")) for key in in_doubt}
        runs = [now.get(run.key, run) for run in runs]
        differ = held.differing([*runs, *others])
    if differ:
        return None
    for kind in KINDS:
        _warn_of_lost([key for key in held.lost if kind_of(key) == kind])
    lost_runs = [key for key in held.lost if kind_of(key) == "run"]
    return CollectSummary(
        **vars(held.counts),
        updated=0,
        unchanged=sum(bool(run.files) for run in runs),
        missing=len(lost_runs),
    )


def _collect_runs(build: Build, root: Path, study: str | None, drop: bool) -> _SourceCounts:
    """Bring the runs, the nodes that they ran on, and which of them their study no longer has."""
    scope = None if build.changed else study  # a new database gets every study
    _bring(build, root, _STUDIES, scan.stat_studies(root, scope), scope, drop)
    _bring(build, root, _NODES, scan.stat_nodes(root, scope), scope, drop)
    runs = [run for run in map(stat_run, run_folders(root, scope)) if run.files]
    counts = _bring(build, root, _RUNS, runs, scope, drop)
    if build.changed:
        steps.label(build.connection)
    return counts


def _collect_certificates(build: Build, root: Path, drop: bool) -> None:
    _bring(build, root, _CERTIFICATES, scan.stat_certificates(root), None, drop)


def _check(root: Path, study: str | None) -> None:
    if not root.is_dir():
        raise UserError(f"no folder {root}: launch a study first, or name the workspace with --root")
    if study and not (root / study).is_dir() and study not in (collected := studies(root)):
        names = sorted({folder.path.parent.name for folder in run_folders(root)} | set(collected))
        raise no_runs(root, study, names)


def _bring(
    build: Build, root: Path, kind: _Kind, sources: Collection[SourceFiles], scope: str | None, drop: bool
) -> _SourceCounts:
    """Replace the rows of what changed since the last collect, and mark those whose files are gone.

    Args:
        sources: what is on disk of this kind.
        scope: the study that was looked at; None for all of them.
        drop: forget what only an old database knows.
    """
    connection, on_disk = build.connection, {source.key: source for source in sources}
    from_reports = [key for key in recorded_files(connection, OF_REPORTS) if key in on_disk]
    forget(connection, from_reports, kind.tables)  # what the root has itself takes precedence
    inherit(build, root, on_disk, kind.condition, kind.tables, drop)
    recorded = recorded_files(connection, kind.condition, scope)
    lost = find_lost(connection, root, on_disk, recorded)
    current = on_disk | {
        key: replace(on_disk.get(key, SourceFiles(key, ())), lost=files) for key, files in lost.items()
    }
    stale = [source for key, source in current.items() if not same_stat(source, recorded.get(key, {}))]
    gone = [key for key in recorded if key not in current]
    forget(connection, gone, kind.tables)

    # No transaction is needed: this is a copy, which replaces the database only if everything succeeds.
    updated = 0
    batches = (_read_batch(root, kind, batch, recorded) for batch in _batches(stale, kind.batch))
    with closing(_ahead(batches)) as ready:
        for batch in ready:
            steps.stage(connection)
            steps.load(connection, root, batch.rows)
            forget(connection, [source.key for source in batch.touched], ("files",))
            touched_files = [row for source in batch.touched for row in file_rows(source.key, source.states)]
            insert(connection, "files", touched_files)
            with keeping(connection, batch.changed):
                replaced = [source.key for source in batch.changed if source.key in recorded]
                forget(connection, replaced, kind.tables)
                for table in kind.tables:
                    if table not in steps.STEP_TABLES:
                        insert(connection, table, getattr(batch.rows, table))
            steps.derive(connection)
            updated += len(batch.changed)
    build.changed |= bool(stale or gone)
    _warn_of_lost(lost)
    return _SourceCounts(updated, len(sources) - updated, len(lost))


def _warn_of_lost(keys: Collection[Key]) -> None:
    if keys:
        log.warning("%s: no files here; their records are kept (missing_since)", named(keys))


class _Batch(NamedTuple):
    """Some sources whose files have changed, and what these say, apart from step records.

    Attributes:
        touched: those whose files have another time but the same content.
        changed: the others, whose rows these are.
    """

    touched: list[SourceFiles]
    changed: list[SourceFiles]
    rows: Rows


def _read_batch(root: Path, kind: _Kind, stale: list[SourceFiles], recorded: RecordedFiles) -> _Batch:
    batch = _Batch([], [], Rows())
    for unread in stale:
        source, before = with_hashes(root, unread), recorded.get(unread.key, {})
        # Without its run.json no other file of a run makes sense: they count as they were read last.
        lost = {file.path for file in source.lost}
        if any(path.endswith("/run.json") for path in lost):
            source = replace(source, files=tuple(file for path, file in before.items() if path not in lost))
        (batch.touched if same_content(source, before) else batch.changed).append(source)
    for source in batch.changed:
        batch.rows.files += file_rows(source.key, source.states)
        kind.read(root, source, batch.rows)
    return batch


def _ahead(items: Iterator[T]) -> Generator[T]:
    """The same, each made by another thread while the one before it is used."""
    with ThreadPoolExecutor(1) as thread:
        coming = thread.submit(next, items, None)
        while item := coming.result():
            coming = thread.submit(next, items, None)
            yield item


def _batches(stale: list[SourceFiles], most: int) -> Iterator[list[SourceFiles]]:
    """Batches of at most `most` and of no more bytes than memory holds as rows, unless one alone has more."""
    batch: list[SourceFiles] = []
    size = 0
    for source in stale:
        source_bytes = sum(file.size_bytes for file in source.files)
        if batch and (len(batch) == most or size + source_bytes > _BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(source)
        size += source_bytes
    if batch:
        yield batch
