"""Run folders into the database, incrementally. Files are truth: the database can be deleted at any time."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from analysis import load_steps, store
from analysis.ingest import Row, Rows, file_rows, read_run
from analysis.scan import FileState, Key, Seen, hashed, look, same_content, same_stat
from model.errors import UserError, did_you_mean
from model.record import run_folders

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

# Run folders at a time: enough files for DuckDB to read side by side, few enough to hold in memory.
_BATCH = 1000
_TABLES = ("run_records", "attempts", "step_records", "files", "quarantine")
_Ledger = dict[Key, dict[str, FileState]]


@dataclass(frozen=True)
class CollectSummary:
    """What a collect did, and what the database then holds of the studies that it looked at.

    Attributes:
        runs, attempts, steps: rows in the database (steps: step records, of every attempt).
        quarantined: files that could not be read.
        updated: run folders read because they are new or changed.
        unchanged: run folders left alone.
        removed: runs dropped because their folder is gone.
    """

    runs: int
    attempts: int
    steps: int
    quarantined: int
    updated: int
    unchanged: int
    removed: int


def collect(root: Path, study: str | None = None, rebuild: bool = False) -> CollectSummary:
    """Bring the database up to date with the run folders.

    Args:
        root: the workspace.
        study: look at this study only; the others' rows stay as they are.
        rebuild: forget the database and read everything again, of every study.

    Raises:
        UserError: there is no such root or study. A file that cannot be read is no error: it goes to the
            table `quarantine`, with why, and everything else is collected.
    """
    root = root.resolve()
    _check(root, study)
    with store.building(root, fresh=rebuild) as build:
        scope = None if build.changed else study  # an empty database is filled whole
        known = _ledger(build.connection, scope)
        seen = {found.key: found for found in map(look, run_folders(root, scope)) if found.files}
        stale = [found for key, found in seen.items() if not same_stat(found, known.get(key, {}))]
        gone = [key for key in known if key not in seen]
        updated = _update(build.connection, root, known, stale, gone)
        build.changed |= bool(stale or gone)
        return _summary(build.connection, study, updated, len(seen) - updated, len(gone))


def _check(root: Path, study: str | None) -> None:
    if not root.is_dir():
        raise UserError(f"no folder {root}: launch a study first, or name the workspace with --root")
    if study and not (root / study).is_dir():
        names = sorted({folder.path.parent.name for folder in run_folders(root)})
        raise UserError(f"no runs of study '{study}' under {root} {did_you_mean(study, names)}")


def _ledger(connection: DuckDBPyConnection, study: str | None) -> _Ledger:
    known: _Ledger = {}
    rows = connection.execute(
        "SELECT study, run_id, path, size_bytes, mtime_ns, sha256 FROM files WHERE study = $1 OR $1 IS NULL",
        [study],
    ).fetchall()
    for owner, run_id, *state in rows:
        known.setdefault((owner, run_id), {})[state[0]] = FileState(*state)
    return known


def _update(
    connection: DuckDBPyConnection, root: Path, known: _Ledger, stale: list[Seen], gone: list[Key]
) -> int:
    """Replace the rows of what changed and give the number of runs that were read.

    No transaction: this is a copy that takes the database's place only when all of it is done.
    """
    _forget(connection, gone, _TABLES)
    updated = 0
    for start in range(0, len(stale), _BATCH):
        batch = [hashed(root, found) for found in stale[start : start + _BATCH]]
        touched = [found for found in batch if same_content(found, known.get(found.key, {}))]
        changed = [found for found in batch if not same_content(found, known.get(found.key, {}))]
        _forget(connection, [found.key for found in touched], ("files",))
        _insert(connection, "files", [row for found in touched for row in file_rows(found)])
        _forget(connection, [found.key for found in changed], _TABLES)
        _read(connection, root, changed)
        updated += len(changed)
    return updated


def _read(connection: DuckDBPyConnection, root: Path, changed: list[Seen]) -> None:
    rows = Rows()
    for found in changed:
        read_run(root, found, rows)
    load_steps.load(connection, root, rows)
    for table in ("run_records", "attempts", "files", "quarantine"):
        _insert(connection, table, getattr(rows, table))


def _forget(connection: DuckDBPyConnection, keys: list[Key], tables: tuple[str, ...]) -> None:
    import pyarrow as pa

    if not keys:
        return
    connection.register(
        "gone", pa.table({"study": [key[0] for key in keys], "run_id": [key[1] for key in keys]})
    )
    for table in tables:
        connection.execute(f"DELETE FROM {table} WHERE (study, run_id) IN (SELECT study, run_id FROM gone)")
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


def _summary(
    connection: DuckDBPyConnection, study: str | None, updated: int, unchanged: int, removed: int
) -> CollectSummary:
    def count(table: str) -> int:
        query = f"SELECT count(*) FROM {table} WHERE study = $1 OR $1 IS NULL"
        return int(connection.execute(query, [study]).fetchall()[0][0])

    return CollectSummary(
        runs=count("run_records"),
        attempts=count("attempts"),
        steps=count("step_records"),
        quarantined=count("quarantine"),
        updated=updated,
        unchanged=unchanged,
        removed=removed,
    )
