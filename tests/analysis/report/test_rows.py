"""The typed rows have the columns of their queries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from analysis.report import backends, facts, output, rows, runs
from analysis.store.database import open_for_reading

ADDED = {"history", "page", "tests", "tensors", "kinds"}  # by us, to what the query gives


@pytest.mark.parametrize(
    ("record", "sql"),
    [
        (rows.Run, facts.RUNS_SQL),
        (rows.AttemptRow, facts.QUERIES["attempts"]),
        (rows.UntimedRow, facts.QUERIES["untimed"]),
        (rows.UnreadFile, facts.QUERIES["quarantine"]),
        (rows.ColumnComment, facts.QUERIES["columns"]),
        (rows.RunFile, runs.FILES_SQL.replace("$runs", "NULL")),
        (rows.Printed, output.SQL),
        (rows.CertificateRow, backends.queries()["Certificates"]),
    ],
)
def test_a_record_has_the_columns_of_its_query(demo: Path, record: Any, sql: str) -> None:
    with open_for_reading(demo) as connection:
        output.attach(connection, [])
        columns = connection.execute(f"DESCRIBE {facts.literal(sql, 'backends')}").fetchall()
    assert record.__annotations__.keys() - ADDED == {name for name, *_ in columns}
