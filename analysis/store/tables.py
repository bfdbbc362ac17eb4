"""Rows in and out of the base tables by the key of their run or certificate, and runs that are left out."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from analysis.store.database import quoted
from analysis.store.scan import CERTIFICATES, NODES, REPORTS, FilesByPath, FileState, Key
from model.record.folder import STUDY

if TYPE_CHECKING:
    import pyarrow as pa
    from duckdb import DuckDBPyConnection

Row = dict[str, Any]
RecordedFiles = dict[Key, FilesByPath]  # what the table `files` has of each source
# Base tables with rows of attempts, beside those of their steps.
ATTEMPT_TABLES = ("attempts", "step_floor", "step_profile", "audits", "decoding", "kernels", "probes")
# How a row names what it belongs to: a certificate, a node or a study; all others name a run, by KEY.
KEY = "(study, run_id)"
OWNER = {
    "certificates": f"('{CERTIFICATES}', key)",
    "verifications": f"('{CERTIFICATES}', certificate)",
    "nodes": f"(study, '{NODES}/' || key)",
    "removed_runs": f"(study, '{STUDY}')",
}
# Conditions on the table `files`. Whatever came from a report has the file of that report.
OF_REPORTS = f"path LIKE '%/{REPORTS}/%'"
OF_NODES = f"run_id LIKE '{NODES}/%' AND NOT {OF_REPORTS}"
OF_STUDIES = f"run_id = '{STUDY}'"
OF_CERTIFICATES = f"study = '{CERTIFICATES}' AND NOT {OF_REPORTS}"
OF_RUNS = f"NOT ({OF_CERTIFICATES} OR {OF_NODES} OR {OF_STUDIES} OR {OF_REPORTS})"

_WITH_RUNS = """\
SELECT table_name FROM duckdb_columns()
WHERE database_name = current_database() AND NOT internal AND table_name <> 'removed_runs'
GROUP BY table_name HAVING count(*) FILTER (column_name IN ('study', 'run_id')) = 2"""


def recorded_files(connection: DuckDBPyConnection, condition: str, study: str | None = None) -> RecordedFiles:
    """The files that rows were read from, by the table `files`, which may be of an earlier version.

    Args:
        condition: SQL that picks them, of study $1 if it names one.
    """
    given = [study] if "$1" in condition else None
    cursor = connection.execute(f"SELECT * FROM files WHERE {condition}", given)
    names = [column[0] for column in cursor.description or ()]
    recorded: RecordedFiles = {}
    for values in cursor.fetchall():
        row = dict(zip(names, values, strict=True))
        state = FileState(**{name: row[name] for name in FileState._fields if name in row})
        recorded.setdefault((row["study"], row["run_id"]), {})[state.path] = state
    return recorded


def forget(connection: DuckDBPyConnection, keys: list[Key], tables: tuple[str, ...]) -> None:
    """Delete the rows of these runs or certificates."""
    if not keys:
        return
    with registered(connection, "gone", keys_table(keys)):
        for table in tables:
            of_gone = f"{OWNER.get(table, KEY)} IN (SELECT study, run_id FROM gone)"
            if table == "step_lines":
                of_gone = f"file IN (SELECT file FROM step_files WHERE {of_gone})"
            connection.execute(f"DELETE FROM {table} WHERE {of_gone}")


def keys_table(keys: Collection[Key]) -> pa.Table:
    """Keys as a table of `study` and `run_id`."""
    import pyarrow as pa

    return pa.table({"study": [key[0] for key in keys], "run_id": [key[1] for key in keys]})


@contextmanager
def registered(connection: DuckDBPyConnection, name: str, table: pa.Table) -> Iterator[None]:
    """Let SQL in the body read an Arrow table by this name. After an error, it stays registered."""
    connection.register(name, table)
    yield
    connection.unregister(name)


def insert(connection: DuckDBPyConnection, table: str, rows: list[Row]) -> None:
    """Insert rows by column name; a column that no row has is NULL."""
    import pyarrow as pa

    if not rows:
        return
    names = dict.fromkeys(name for row in rows for name in row)
    insert_table(connection, table, pa.table({name: [row.get(name) for row in rows] for name in names}))


def insert_table(connection: DuckDBPyConnection, table: str, rows: pa.Table) -> None:
    """Insert the rows of an Arrow table by column name."""
    with registered(connection, "new_rows", rows):
        connection.execute(f"INSERT INTO {table} BY NAME SELECT * FROM new_rows")


def count(connection: DuckDBPyConnection, table: str, condition: str = "true", *study: str | None) -> int:
    """Number of rows."""
    query = f"SELECT count(*) FROM {table} WHERE {condition}"
    return int(connection.execute(query, list(study)).fetchall()[0][0])


def removed_runs(connection: DuckDBPyConnection, study: str) -> list[str]:
    """Ids of the runs in an open database that their study no longer has."""
    result = connection.execute(
        "SELECT run_id FROM removed_runs SEMI JOIN run_records USING (study, run_id) "
        "WHERE study = $1 ORDER BY run_id",
        [study],
    )
    return [run_id for (run_id,) in result.fetchall()]


def leave_out(connection: DuckDBPyConnection, study: str, runs: Sequence[str]) -> None:
    """Hide runs of a study from all queries that follow on a connection, whatever table these read."""
    if not runs:
        return
    hidden = f"study = {quoted(study)} AND run_id IN ({', '.join(map(quoted, runs))})"
    ((database,),) = connection.execute("SELECT current_database()").fetchall()
    for (table,) in connection.execute(_WITH_RUNS).fetchall():
        connection.execute(
            f"CREATE TEMP VIEW {table} AS FROM {database}.main.{table} WHERE ({hidden}) IS NOT TRUE"
        )
