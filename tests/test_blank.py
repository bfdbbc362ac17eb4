"""A copied database is what the schema's statements make."""

from pathlib import Path

import duckdb
import pytest

from tests import blank

COLUMNS = "SELECT table_name, column_name, data_type, is_nullable, comment FROM duckdb_columns() ORDER BY ALL"
TABLES = "SELECT table_name, comment, sql FROM duckdb_tables() ORDER BY ALL"
VIEWS = "SELECT view_name, comment FROM duckdb_views() ORDER BY ALL"
CONSTRAINTS = "SELECT table_name, constraint_text FROM duckdb_constraints() ORDER BY ALL"


def test_a_copy_has_the_tables_the_comments_and_the_version_of_one_that_was_made(tmp_path: Path) -> None:
    created, copied = (
        create(tmp_path / name, None)
        for create, name in ((blank._made, "made.duckdb"), (blank._copied, "copied.duckdb"))
    )
    for query in (COLUMNS, "FROM database_version"):
        rows = [build.connection.execute(query).fetchall() for build in (created, copied)]
        assert rows[0] == rows[1] != []
    assert copied.changed
    for build in (created, copied):
        build.connection.close()


def test_a_copy_in_memory_is_what_is_made_there_and_as_closed() -> None:
    created, copied = blank._made_in_memory(), blank._copied_in_memory()
    for query in (COLUMNS, TABLES, VIEWS, CONSTRAINTS):
        assert created.execute(query).fetchall() == copied.execute(query).fetchall() != []
    for connection in (created, copied):
        assert connection.execute("SHOW DATABASES").fetchall() == [("memory",)]
        with pytest.raises(duckdb.PermissionException):
            connection.execute("FROM read_text('/etc/hostname')")
        connection.close()
