"""Loads steps.jsonl files into `step_lines`: in batches by DuckDB, singly only where it refuses a batch."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.store.database import DERIVE, scripts
from analysis.store.ingest import Rows, fitting, utc
from analysis.store.tables import Row, insert, registered
from model.record.files import Unreadable, read_lines
from model.record.imported import ImportedStep
from model.record.records import StepRecord, finite

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

# `time` is read as text: DuckDB's TIMESTAMP drops an offset from UTC, TIMESTAMPTZ honours it. The first and
# last day are left to Python, which knows no moment before or after them.
COLUMNS = {
    "step": "BIGINT",
    "steps": "BIGINT",
    "time": "VARCHAR",
    "loss": "DOUBLE",
    "learning_rate": "DOUBLE",
    "grad_norm": "DOUBLE",
    "step_seconds": "DOUBLE",
    "tokens": "BIGINT",
    "training_tokens": "BIGINT",
    "memory_bytes": "BIGINT",
    "step_seconds_min": "DOUBLE",
    "step_seconds_median": "DOUBLE",
    "step_seconds_max": "DOUBLE",
    "data_wait_seconds": "DOUBLE",
    "energy_joules": "DOUBLE",
    "sm_mhz": "DOUBLE",
    "throttle_reasons": "VARCHAR",
    "slowest_rank": "INTEGER",
    "slowest_rank_seconds": "DOUBLE",
    "other_ranks_seconds": "DOUBLE",
    "power_joules": "DOUBLE",
    "power_seconds": "DOUBLE",
    "power_steps": "BIGINT",
    "printed_tokens_per_second": "DOUBLE",
    "schema_version": "BIGINT",
}
# An infinite loss or gradient's norm is unknown; a file with an infinite measurement is refused.
_KNOWN_OR_NOT = ("loss", "grad_norm")
_FINITE = tuple(name for name, kind in COLUMNS.items() if kind == "DOUBLE" and name not in _KNOWN_OR_NOT)
# Beyond what float32 holds nothing was measured, and sums and products of it are infinite.
_LARGEST = 3.5e38
_ALL_FINITE = " AND ".join(
    [f"coalesce(abs(s.{name}) <= {_LARGEST}, true)" for name in _FINITE]
    + [f"coalesce(abs(s.{name}) <= {_LARGEST} OR NOT isfinite(s.{name}), true)" for name in _KNOWN_OR_NOT]
)
MEASURES = ("run_measures", "comparable", "curves", "labels")  # tables that our SQL alone fills
LINES = ("step_lines", "step_files")  # tables that the view step_records joins
STEP_TABLES = (*LINES, *MEASURES)  # all that are filled from step records
_AFTER_ALL_RUNS = "-- AFTER ALL RUNS\n"  # parts derive.sql in two
_STAGE = "loaded"  # a temporary table that takes step records as the view step_records has them
_READ = f"""
INSERT INTO step_lines BY NAME
SELECT f.file, s.* EXCLUDE (filename, schema_version) REPLACE (
        make_timestamp(epoch_us(s.time::TIMESTAMPTZ)) AS time,
        CASE WHEN isfinite(s.loss) THEN s.loss END AS loss,
        CASE WHEN isfinite(s.grad_norm) THEN s.grad_norm END AS grad_norm)
FROM read_json(?, format = 'newline_delimited', columns = {COLUMNS}, filename = true) s
JOIN files_here f ON f.path = s.filename
WHERE CASE WHEN s.schema_version = 1 AND s.step > 0 AND s.steps > 0
        AND coalesce(s.step_seconds >= 0, f.imported) AND {_ALL_FINITE}
        AND (s.tokens > 0 OR f.imported AND s.tokens IS NULL)
        AND coalesce(s.time BETWEEN '0001-01-02' AND '9999-12-31', true) THEN true
    ELSE error('not a step record') END
"""
_FRESH = """
INSERT INTO fresh SELECT file, study, run_id, attempt FROM files_here
WHERE file IN (SELECT file FROM step_lines WHERE file > ?)
"""


def recorded_columns(table: str) -> str:
    """SQL for the columns of a base table; of the view `step_records`, for those that it does not derive."""
    if table != "step_records":
        return "*"
    return ", ".join(("study", "run_id", "attempt", *(name for name in COLUMNS if name != "schema_version")))


def loaded_into(table: str) -> str:
    """The table that takes new rows of a base table, or of the view `step_records`."""
    return _STAGE if table == "step_records" else table


def stage(connection: DuckDBPyConnection, script: str | None = None) -> None:
    """Make the empty tables that take step records, or say where they are, until `derive` settles them.

    Args:
        script: the one that will derive, by its first statements; by default this version's.
    """
    for statement in connection.extract_statements(script or scripts()[DERIVE]):
        if "CREATE TEMP TABLE IF NOT EXISTS" not in statement.query:
            break
        connection.execute(statement)


def load(connection: DuckDBPyConnection, root: Path, rows: Rows) -> None:
    """Put the steps of every file in `rows.step_files` into `step_lines`; quarantine what cannot be read."""
    import pyarrow as pa

    if not rows.step_files:
        return
    ((last,),) = connection.execute("SELECT coalesce(max(file), 0) FROM step_files").fetchall()
    numbered = [{**file, "file": number} for number, file in enumerate(rows.step_files, start=last + 1)]
    with registered(connection, "files_here", pa.Table.from_pylist(numbered)):
        _load(connection, root, rows, numbered)
        connection.execute(_FRESH, [last])


def derive(connection: DuckDBPyConnection) -> None:
    """Settle what was loaded by what the other records of its runs say, and measure the runs."""
    if connection.execute("SELECT EXISTS (FROM fresh) OR EXISTS (FROM loaded)").fetchall() == [(False,)]:
        return
    of_runs, _ = scripts()[DERIVE].split(_AFTER_ALL_RUNS)
    for statement in connection.extract_statements(of_runs):
        connection.execute(statement)


def label(connection: DuckDBPyConnection) -> None:
    """Name the groups of all studies, after all else: each run can change the names of others."""
    _, of_all = scripts()[DERIVE].split(_AFTER_ALL_RUNS)
    connection.execute(of_all)


def _load(connection: DuckDBPyConnection, root: Path, rows: Rows, files: list[Row]) -> None:
    """Halve a refused batch until only the file that DuckDB cannot read is left."""
    import duckdb

    try:
        connection.execute(_READ, [[glob.escape(file["path"]) for file in files]])
    except duckdb.Error:
        if len(files) == 1:
            _load_one(connection, root, rows, files[0])
            return
        middle = len(files) // 2
        _load(connection, root, rows, files[:middle])
        _load(connection, root, rows, files[middle:])


def _load_one(connection: DuckDBPyConnection, root: Path, rows: Rows, file: Row) -> None:
    """Read a file through the records' own model, which forgives a torn last line and nothing else."""
    path = Path(file["path"])
    try:
        records: Sequence[StepRecord | ImportedStep] = read_lines(
            path, ImportedStep if file["imported"] else StepRecord
        )
        if not records and path.stat().st_size:
            raise Unreadable(f"{path}: it has no complete line")
        for record in records:
            for name in (*_FINITE, *_KNOWN_OR_NOT):  # JSON holds no infinity, and nothing beyond all measure
                if (value := getattr(record, name, None)) is not None and not abs(value) <= _LARGEST:
                    raise Unreadable(f"{path}: {name} at step {record.step} is {value}")
        table = []
        for record in records:
            values = record.model_dump(exclude={"schema_version"})
            values |= {name: values[name] and finite(values[name]) for name in _KNOWN_OR_NOT}
            table.append(fitting(values | {"file": file["file"], "time": utc(record.time)}))
    except Unreadable as error:
        key = file["study"], file["run_id"]
        rows.refuse(key, path.relative_to(root).as_posix(), str(error).removeprefix(f"{path}: "))
        return
    insert(connection, "step_lines", table)
