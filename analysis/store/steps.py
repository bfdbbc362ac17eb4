"""Loads steps.jsonl files into `step_records`: in batches by DuckDB, singly only where it refuses a batch."""

from __future__ import annotations

import glob
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.store.ingest import Row, Rows, utc
from model.disk.files import Unreadable, read_lines
from model.disk.record import StepRecord

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

# `time` is read as text: DuckDB's TIMESTAMP drops an offset from UTC, TIMESTAMPTZ honours it.
_COLUMNS = {
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
    "schema_version": "BIGINT",
}
_READ = f"""
INSERT INTO step_records BY NAME
SELECT f.study, f.run_id, f.attempt,
    s.* EXCLUDE (filename, schema_version) REPLACE (make_timestamp(epoch_us(s.time::TIMESTAMPTZ)) AS time)
FROM read_json(?, format = 'newline_delimited', columns = {_COLUMNS}, filename = true) s
JOIN step_files f ON f.path = s.filename
WHERE CASE WHEN s.schema_version = 1 AND s.steps > 0 AND s.tokens > 0 THEN true
    ELSE error('not a step record') END
"""


def load(connection: DuckDBPyConnection, root: Path, rows: Rows) -> None:
    """Insert the steps of every file in `rows.step_files`; a file that cannot be read is quarantined."""
    import pyarrow as pa

    if not rows.step_files:
        return
    connection.register("step_files", pa.Table.from_pylist(rows.step_files))
    _load(connection, root, rows, rows.step_files)
    connection.unregister("step_files")


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
    import pyarrow as pa

    path = Path(file["path"])
    try:
        records = read_lines(path, StepRecord)
    except Unreadable as error:
        key = file["study"], file["run_id"]
        rows.refuse(key, path.relative_to(root).as_posix(), str(error).removeprefix(f"{path}: "))
        return
    if records:
        table = [_row(record, file) for record in records]
        connection.register("read_here", pa.Table.from_pylist(table))
        connection.execute("INSERT INTO step_records BY NAME SELECT * FROM read_here")
        connection.unregister("read_here")


def _row(record: StepRecord, file: Row) -> Row:
    values = record.model_dump(exclude={"schema_version"})
    key = {name: file[name] for name in ("study", "run_id", "attempt")}
    return key | values | {"time": utc(record.time)}
