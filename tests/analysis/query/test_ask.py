"""Asking: bad SQL and missing databases are a user's error, and no query can do harm."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from analysis.query.ask import ask
from analysis.store import database as store
from model.errors import UserError


@pytest.mark.parametrize(
    ("sql", "says"),
    [
        ("SELECT * FROM rums", 'Did you mean "runs"'),
        ("SELEC 1", "syntax error"),
        ("", "returns no rows"),
        ("SELECT nope FROM runs", "nope"),
    ],
)
def test_bad_sql_is_a_users_error_in_duckdbs_words(filled: Path, sql: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        ask(filled, sql)


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
