"""A study's rows as Parquet, one file a table, and such files as a database in memory.

What a report carries, and what an export holds, so that both can be computed again without the run folders.
"""

from __future__ import annotations

import os
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.store.database import DERIVE, first_lines, in_memory, quoted, scripts
from analysis.store.scan import CERTIFICATES
from analysis.store.steps import STEP_TABLES, loaded_into, recorded_columns, stage
from analysis.store.tables import insert_table
from model.record.errors import UserError
from model.record.files import is_plain

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

# Certificates belong to no study: those that its attempts name, or the newest of each backend and device.
_OF_STUDY = """\
SELECT certificate FROM attempts WHERE study = $study
UNION SELECT certificate FROM kernels WHERE study = $study"""
_OF_MACHINE = "SELECT certificate FROM backends"
_KEPT_WITH = f"study = '{CERTIFICATES}' AND run_id IN ($certificates)"
_CONDITIONS = {
    "files": f"study = $study OR {_KEPT_WITH}",
    "quarantine": f"study = $study OR {_KEPT_WITH}",
    "certificates": "key IN ($certificates)",
    "verifications": "certificate IN ($certificates)",
}
_TABLES = f"""\
SELECT table_name FROM duckdb_tables() WHERE NOT temporary AND table_name NOT IN {STEP_TABLES} AND (
    table_name IN ('certificates', 'verifications')
    OR table_oid IN (SELECT table_oid FROM duckdb_columns() WHERE column_name = 'study'))
UNION SELECT 'step_records' ORDER BY 1"""
_LATER = ("probes",)  # tables that records of earlier versions lack; they are empty there
_ROWS = 65_536  # at a time
_RUNS = 1_000  # runs whose steps are sorted at once


def selections(connection: DuckDBPyConnection, study: str | None) -> dict[str, str]:
    """For each table, the SELECT that gives a study's rows in a fixed order.

    Args:
        study: None for the certificates that `runner verify` made, and no run.
    """
    certificates = _OF_MACHINE if study is None else _OF_STUDY
    name = "NULL" if study is None else quoted(study)

    def select(table: str) -> str:
        condition = _CONDITIONS.get(table, "study = $study").replace("$certificates", certificates)
        # What the view adds to a step record is derived again, and not carried.
        sql = f"SELECT {recorded_columns(table)} FROM {table} WHERE {condition} ORDER BY ALL"
        return sql.replace("$study", name)

    return {table: select(table) for (table,) in connection.execute(_TABLES).fetchall()}


def write_table(connection: DuckDBPyConnection, path: Path, first: str, *more: str) -> None:
    """Write the rows of queries of the same columns, one after the other, as Parquet.

    Equal rows give equal bytes, with the same version of pyarrow.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    reader = connection.sql(first).to_arrow_reader(_ROWS)
    plain = [field.name for field in reader.schema if pa.types.is_floating(field.type)]
    others = [field.name for field in reader.schema if field.name not in plain]
    # With measurements split by byte, the file of step records takes a fifth less.
    options = {"compression": "zstd", "use_dictionary": others, "use_byte_stream_split": plain}
    with pq.ParquetWriter(path, reader.schema, **options) as writer:
        rest = (
            connection.sql(sql).to_arrow_reader(_ROWS) for sql in more
        )  # each when the one before has ended
        for batch in chain(reader, chain.from_iterable(rest)):
            writer.write_batch(batch)


def write_records(connection: DuckDBPyConnection, study: str | None, folder: Path) -> None:
    """Write a study's rows of every base table to `folder/TABLE.parquet`."""
    folder.mkdir(parents=True, exist_ok=True)
    for table, sql in selections(connection, study).items():
        parts = [sql]
        if table == "step_records":  # to sort the steps of all runs at once takes several times the memory
            rows, _, order = sql.rpartition(" ORDER BY ")
            ids = connection.execute(f"SELECT DISTINCT run_id FROM ({rows}) ORDER BY ALL").fetchall()
            starts = [quoted(run_id) for (run_id,) in ids[_RUNS::_RUNS]]
            after = ["", *(f" AND run_id >= {start}" for start in starts)]
            before = [*(f" AND run_id < {start}" for start in starts), ""]
            parts = [f"{rows}{low}{high} ORDER BY {order}" for low, high in zip(after, before, strict=True)]
        write_table(connection, folder / f"{table}.parquet", *parts)


def open_records(folder: Path, given: tuple[str, ...] | None = None) -> DuckDBPyConnection:
    """Fill a database in memory with records; SQL can reach nothing else from there.

    A column that a file lacks is NULL, one that the schema lacks is left out, and a later table may have no
    file: records outlive versions.
    What is derived from step records is not taken from the files but derived again.

    Args:
        folder: what `write_records` wrote.
        given: SQL that creates tables and views, and derives; by default this version's `scripts`.

    Raises:
        UserError: a file is missing or torn, or its values do not fit.
    """
    import duckdb

    connection = in_memory(given)
    try:
        derive = given[-1] if given else scripts()[DERIVE]
        stage(connection, derive)
        for (table,) in connection.execute(_TABLES).fetchall():
            path = folder / f"{table}.parquet"
            if table not in _LATER or os.path.lexists(path):
                _load(connection, loaded_into(table), path)
        connection.execute(derive)
    except duckdb.Error as error:
        raise UserError(f"{folder}: {first_lines(error)}") from error
    return connection


def _load(connection: DuckDBPyConnection, table: str, path: Path) -> None:
    import duckdb
    import pyarrow as pa
    import pyarrow.parquet as pq

    wanted = {name for name, *_ in connection.execute(f"DESCRIBE {table}").fetchall()}
    if not is_plain(path):
        raise UserError(f"{path} is missing or is not a file")
    try:
        with pq.ParquetFile(path) as file:
            names = [name for name in file.schema_arrow.names if name in wanted]
            for batch in file.iter_batches(_ROWS, columns=names):
                insert_table(connection, table, pa.Table.from_batches([batch]))
    except (pa.ArrowException, OSError, duckdb.ConversionException, duckdb.ConstraintException) as error:
        raise UserError(f"{path}: {first_lines(error, 1)}") from error
