"""Asking: bad SQL and missing databases are a user's error, and no query can do harm."""

from __future__ import annotations

import re
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from analysis.query.ask import ask, stream
from analysis.store import database as store
from model.record.errors import UserError


@pytest.mark.refused
@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT * FROM rums", 'Did you mean "runs"'),
        ("SELEC 1", "syntax error(.|\n)*; write one such as: SELECT label, final_loss FROM runs$"),
        ("", "only one SELECT statement is answered at a time, but this has none"),
        ("SELECT nope FROM runs", "nope"),
    ],
)
def test_bad_sql_is_a_users_error_in_duckdbs_words(filled: Path, sql: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        ask(filled, sql)


@pytest.mark.refused
@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("CREATE TEMP VIEW runs AS SELECT 1 AS forged; SELECT * FROM runs", "but this has 2"),
        ("CREATE TEMP TABLE runs AS SELECT 1 AS forged", "not CREATE"),
        ("SELECT 1; SELECT 2", "but this has 2"),
        ("-- nothing", "but this has none"),
        ("SET threads = 1", "not SET"),
        ("PRAGMA version", "not PRAGMA"),
        ("CALL duckdb_tables()", "not CALL"),
        ("EXPLAIN ANALYZE SELECT 1", "not EXPLAIN"),
        ("BEGIN", "not TRANSACTION"),
        ("PREPARE p AS SELECT 1", "not PREPARE"),
        ("USE memory", "answered, not"),
        ("SELECT * FROM query('CREATE TEMP VIEW a AS SELECT 1')", "SELECT"),
        ("FROM forged", "forged"),
    ],
)
def test_only_one_select_is_answered(filled: Path, sql: str, message: str) -> None:
    """Nothing else runs, so no view can pass for a table; nor can a variable of ours."""
    forged = pa.table({"run_id": ["r1"]})
    assert forged.num_rows
    with pytest.raises(UserError, match=re.escape(message)):
        ask(filled, sql)


@pytest.mark.parametrize(
    "sql", ["SELECT 1 AS a;", "FROM runs", "(SELECT 1)", "WITH w AS (FROM runs) FROM w", "DESCRIBE runs", "SHOW TABLES", "SUMMARIZE runs", "VALUES (1)", "TABLE runs", "SELECT 1 -- a; b"]
)  # fmt: skip
def test_every_way_to_select_is_answered(filled: Path, sql: str) -> None:
    assert ask(filled, sql).rows


def test_an_error_in_a_late_row_is_a_users_error(filled: Path) -> None:
    sql = "SELECT CASE WHEN range = 99999 THEN error('row 99999') ELSE range END AS a FROM range(100000)"
    with store.open_for_reading(filled) as connection, pytest.raises(UserError, match="row 99999"):
        list(stream(connection, sql).pieces())


def test_without_a_database_it_says_what_to_run(root: Path) -> None:
    with pytest.raises(UserError, match="run `runner collect` first"):
        ask(root, "SELECT 1")


def test_a_file_that_is_no_database_is_a_users_error(root: Path) -> None:
    store.database(root).write_bytes(b"x" * 10_000)
    with pytest.raises(UserError, match="cannot be opened"):
        ask(root, "SELECT 1")


def test_a_database_of_another_schema_says_to_collect_again(root: Path) -> None:
    duckdb.connect(store.database(root)).close()
    with pytest.raises(UserError, match="run `runner collect` again"):
        ask(root, "SELECT 1")


@pytest.mark.refused
@pytest.mark.parametrize(
    "sql",
    [
        "COPY runs TO '{outside}'",
        "COPY (SELECT 1) TO '{outside}' (FORMAT parquet)",
        "SELECT * FROM glob('/etc/*')",
        "SELECT * FROM read_text('/etc/hostname')",
        "SELECT * FROM read_csv('/etc/passwd')",
        "FROM '/etc/passwd'",
        "ATTACH '{outside}'",
        "ATTACH '{outside}' AS other (READ_ONLY)",
        "INSTALL httpfs",
        "LOAD httpfs",
        "EXPORT DATABASE '{outside}'",
        "SET enable_external_access = true",
        "SET lock_configuration = false",
        "RESET enable_external_access",
        "CREATE TABLE x (a INT)",
        "DELETE FROM files",
        "DROP VIEW runs",
        "UPDATE files SET path = 'x'",
        "SELECT 1; COPY runs TO '{outside}'",
    ],
)
def test_a_query_can_neither_write_nor_reach_out(filled: Path, tmp_path: Path, sql: str) -> None:
    outside = tmp_path / "outside"
    before = store.database(filled).read_bytes()
    with pytest.raises(UserError):
        ask(filled, sql.format(outside=outside))
    assert not outside.exists()
    assert store.database(filled).read_bytes() == before
