"""Brings the database up to date with run folders and certificates, reading only what changed.

Files are truth: the database can be deleted at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.store import scan, steps
from analysis.store.certificates import read_certificate
from analysis.store.database import Build, building
from analysis.store.ingest import Row, Rows, file_rows, read_run
from analysis.store.scan import CERTIFICATES, FileState, Key, Seen, hashed, look, same_content, same_stat
from model.disk.folder import run_folders
from model.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_Ledger = dict[Key, dict[str, FileState]]


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
# How a row names the certificate that it belongs to. Rows of other tables have the columns study and run_id.
_OWNER = {"certificates": f"('{CERTIFICATES}', key)", "verifications": f"('{CERTIFICATES}', certificate)"}


@dataclass
class _Done:
    """How many were read, left alone and removed."""

    updated: int
    unchanged: int
    removed: int


@dataclass(frozen=True)
class CollectSummary:
    """What a collect did, and what the database then holds for the studies that were collected.

    Attributes:
        runs, attempts, steps: rows in the database (steps: step records of every attempt).
        quarantined: files that could not be read, including the root's certificates.
        updated: run folders read because they are new or have changed.
        unchanged: run folders left alone.
        removed: runs removed because their folder is gone.
        certificates: certificates in the database; they belong to no study.
    """

    runs: int
    attempts: int
    steps: int
    quarantined: int
    updated: int
    unchanged: int
    removed: int
    certificates: int = 0


def collect(root: Path, study: str | None = None, rebuild: bool = False) -> CollectSummary:
    """Bring the database up to date with the run folders and certificates.

    Args:
        root: the workspace.
        study: collect only this study and leave the others' rows alone. Certificates are always collected.
        rebuild: discard the database and read everything again, for every study.

    Raises:
        UserError: there is no such root or study. A file that cannot be read raises nothing: it is listed in
            the table `quarantine` with the reason, and everything else is collected.
    """
    root = root.resolve()
    _check(root, study)
    with building(root, fresh=rebuild) as build:
        done = _collect_runs(build, root, study)
        _collect_certificates(build, root)
        return _summary(build.connection, study, done)


def collect_certificates(root: Path) -> int:
    """Bring only the certificates in the database up to date, and return how many it holds.

    A new database is filled with the runs too: without them it would look complete.

    Raises:
        UserError: there is no such root.
    """
    root = root.resolve()
    _check(root, None)
    with building(root, fresh=False) as build:
        if build.changed:
            _collect_runs(build, root, None)
        _collect_certificates(build, root)
        return _count(build.connection, "certificates")


def _collect_runs(build: Build, root: Path, study: str | None) -> _Done:
    scope = None if build.changed else study  # a new database gets every study
    seen = (found for found in map(look, run_folders(root, scope)) if found.files)
    wanted = f"study <> '{CERTIFICATES}' AND (study = $1 OR $1 IS NULL)"
    return _bring(build, root, _RUNS, seen, _ledger(build.connection, wanted, scope))


def _collect_certificates(build: Build, root: Path) -> None:
    known = _ledger(build.connection, "study = $1", CERTIFICATES)
    _bring(build, root, _CERTIFICATES, scan.certificates(root), known)


def _check(root: Path, study: str | None) -> None:
    if not root.is_dir():
        raise UserError(f"no folder {root}: launch a study first, or name the workspace with --root")
    if study and not (root / study).is_dir():
        names = sorted({folder.path.parent.name for folder in run_folders(root)})
        raise UserError(f"no runs of study '{study}' under {root} {did_you_mean(study, names)}")


def _ledger(connection: DuckDBPyConnection, wanted: str, study: str | None) -> _Ledger:
    known: _Ledger = {}
    rows = connection.execute(
        f"SELECT study, run_id, path, size_bytes, mtime_ns, sha256 FROM files WHERE {wanted}", [study]
    ).fetchall()
    for owner, run_id, *state in rows:
        known.setdefault((owner, run_id), {})[state[0]] = FileState(*state)
    return known


def _bring(build: Build, root: Path, kind: _Kind, found: Iterable[Seen], known: _Ledger) -> _Done:
    """Replace the rows of what changed since the last collect, and delete those of what is gone."""
    seen = {each.key: each for each in found}
    stale = [each for key, each in seen.items() if not same_stat(each, known.get(key, {}))]
    gone = [key for key in known if key not in seen]
    _forget(build.connection, gone, kind.tables)
    updated = _update(build.connection, root, kind, known, stale)
    build.changed |= bool(stale or gone)
    return _Done(updated, len(seen) - updated, len(gone))


def _update(
    connection: DuckDBPyConnection, root: Path, kind: _Kind, known: _Ledger, stale: list[Seen]
) -> int:
    """Replace the rows of what changed, and return how many runs or certificates were read.

    No transaction is needed: this is a copy, which replaces the database only if everything succeeds.
    """
    updated = 0
    for start in range(0, len(stale), kind.batch):
        batch = [hashed(root, found) for found in stale[start : start + kind.batch]]
        touched = [found for found in batch if same_content(found, known.get(found.key, {}))]
        changed = [found for found in batch if not same_content(found, known.get(found.key, {}))]
        _forget(connection, [found.key for found in touched], ("files",))
        _insert(connection, "files", [row for found in touched for row in file_rows(found)])
        _forget(connection, [found.key for found in changed], kind.tables)
        _read(connection, root, kind, changed)
        updated += len(changed)
    return updated


def _read(connection: DuckDBPyConnection, root: Path, kind: _Kind, changed: list[Seen]) -> None:
    rows = Rows()
    for found in changed:
        kind.read(root, found, rows)
    steps.load(connection, root, rows)
    for table in kind.tables:
        if table != "step_records":  # DuckDB has loaded these from the files
            _insert(connection, table, getattr(rows, table))


def _forget(connection: DuckDBPyConnection, keys: list[Key], tables: tuple[str, ...]) -> None:
    import pyarrow as pa

    if not keys:
        return
    connection.register(
        "gone", pa.table({"study": [key[0] for key in keys], "run_id": [key[1] for key in keys]})
    )
    for table in tables:
        owner = _OWNER.get(table, "(study, run_id)")
        connection.execute(f"DELETE FROM {table} WHERE {owner} IN (SELECT study, run_id FROM gone)")
    connection.unregister("gone")


def _insert(connection: DuckDBPyConnection, table: str, rows: list[Row]) -> None:
    """Insert rows by column name; a column that no row has is NULL."""
    import pyarrow as pa

    if not rows:
        return
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: [row.get(name) for row in rows] for name in names}
    connection.register("rows_here", pa.table(columns))
    connection.execute(f"INSERT INTO {table} BY NAME SELECT * FROM rows_here")
    connection.unregister("rows_here")


def _summary(connection: DuckDBPyConnection, study: str | None, done: _Done) -> CollectSummary:
    mine = "study = $1 OR $1 IS NULL"
    return CollectSummary(
        runs=_count(connection, "run_records", mine, study),
        attempts=_count(connection, "attempts", mine, study),
        steps=_count(connection, "step_records", mine, study),
        quarantined=_count(connection, "quarantine", f"{mine} OR study = '{CERTIFICATES}'", study),
        certificates=_count(connection, "certificates"),
        **vars(done),
    )


def _count(connection: DuckDBPyConnection, table: str, wanted: str = "true", *study: str | None) -> int:
    query = f"SELECT count(*) FROM {table} WHERE {wanted}"
    return int(connection.execute(query, list(study)).fetchall()[0][0])
