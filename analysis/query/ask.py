"""Answers one SQL query with values, read-only and sandboxed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.store.database import first_lines, open_for_reading
from model.errors import UserError

if TYPE_CHECKING:
    import pyarrow as pa
    from duckdb import DuckDBPyConnection


@dataclass(frozen=True)
class Answer:
    """A query's result.

    Attributes:
        columns: column names.
        rows: Python values; a JSON value is its text.
        table: the same as an Arrow table.
        documents: whether each column is JSON.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    table: pa.Table
    documents: tuple[bool, ...]

    def records(self) -> list[dict[str, Any]]:
        """The rows as dicts by column name."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


def ask(root: Path, sql: str) -> Answer:
    """Answer one query on a root's database.

    Raises:
        UserError: there is no database, or DuckDB refuses the SQL; the text is DuckDB's own.
    """
    with open_for_reading(root) as connection:
        return answer(connection, sql)


def answer(connection: DuckDBPyConnection, sql: str) -> Answer:
    """Answer one query on an open database; raises UserError as `ask` does."""
    import duckdb

    try:
        relation = connection.sql(sql)
        if relation is None:
            raise UserError("the statement returns no rows: use SELECT, SHOW or DESCRIBE")
        documents = tuple(str(kind) == "JSON" for kind in relation.types)
        table = relation.to_arrow_table()
    except duckdb.Error as error:
        raise UserError(first_lines(error)) from error
    return Answer(tuple(table.column_names), _rows(table), table, documents)


def _rows(table: pa.Table) -> tuple[tuple[Any, ...], ...]:
    if not table.num_columns:
        return ()
    return tuple(zip(*(column.to_pylist() for column in table.columns), strict=True))
