"""A copied database is what the schema's statements make."""

from pathlib import Path

from tests import blank

DESCRIBED = "SELECT table_name, column_name, data_type, comment FROM duckdb_columns() ORDER BY ALL"


def test_a_copy_has_the_tables_the_comments_and_the_version_of_one_that_was_made(tmp_path: Path) -> None:
    made, copied = (
        create(tmp_path / name, None)
        for create, name in ((blank._made, "made.duckdb"), (blank._copied, "copied.duckdb"))
    )
    for query in (DESCRIBED, "FROM database_version"):
        said = [build.connection.execute(query).fetchall() for build in (made, copied)]
        assert said[0] == said[1] != []
    assert copied.changed
    for build in (made, copied):
        build.connection.close()
