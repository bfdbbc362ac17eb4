"""Answers one SELECT with values, read-only and sandboxed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.store.database import first_lines, open_for_reading
from model.record.errors import UserError

if TYPE_CHECKING:
    import pyarrow as pa
    from duckdb import DuckDBPyConnection

_BATCH = 2048  # rows at a time, as many as DuckDB computes together
# Types that Arrow holds as other values (-1 for the largest UHUGEINT), or not as Python or Parquet can read
# them. They are answered as DuckDB writes them.
_AS_TEXT = re.compile(r"\b(INTERVAL|UHUGEINT|BIT|TIME WITH TIME ZONE|TIMESTAMP_NS)\b")

_ASKED: ContextVar[list[str] | None] = ContextVar("asked", default=None)


@dataclass(frozen=True)
class Answer:
    """A query's result.

    Attributes:
        columns: column names.
        documents: whether each column is JSON.
        schema: the columns' types.
        batches: the rows as Arrow; those of `stream` can be read once.
    """

    columns: tuple[str, ...]
    documents: tuple[bool, ...]
    schema: pa.Schema
    batches: Iterable[pa.RecordBatch]

    def pieces(self) -> Iterator[list[tuple[Any, ...]]]:
        """The rows as Python values, batch by batch; a JSON value is its text."""
        for batch in self.batches:
            try:
                yield list(zip(*(column.to_pylist() for column in batch.columns), strict=True))
            except (OverflowError, ValueError) as error:
                raise UserError(
                    f"a time is outside the years 1 to 9999; cast it to VARCHAR: {error}"
                ) from error

    @cached_property
    def rows(self) -> tuple[tuple[Any, ...], ...]:
        """All rows at once."""
        return tuple(chain.from_iterable(self.pieces()))

    def records(self) -> list[dict[str, Any]]:
        """The rows as dicts by column name."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    def parsed(self) -> list[dict[str, Any]]:
        """Like `records`, with JSON columns parsed."""
        return [
            {
                name: json.loads(value) if document and value else value
                for name, value, document in zip(self.columns, row, self.documents, strict=True)
            }
            for row in self.rows
        ]


def ask(root: Path, sql: str) -> Answer:
    """Answer one query on a root's database.

    Raises:
        UserError: there is no database, the SQL is not one SELECT, or DuckDB refuses it in its own words.
    """
    with open_for_reading(root) as connection:
        return answer(connection, sql)


def answer(connection: DuckDBPyConnection, sql: str) -> Answer:
    """Answer one query on an open database; raises UserError as `ask` does."""
    streamed = stream(connection, sql)
    return Answer(streamed.columns, streamed.documents, streamed.schema, list(streamed.batches))


def stream(connection: DuckDBPyConnection, sql: str) -> Answer:
    """Answer one query without holding all rows; they come while the database is open.

    Raises:
        UserError: as `ask` does; reading the batches may raise it, too.
    """
    import duckdb

    # All but one SELECT is refused: a temporary view could pass for one of the tables.
    try:
        statements = connection.extract_statements(sql)
    except duckdb.Error as error:
        raise _refused(error) from error
    if len(statements) != 1:
        raise UserError(
            f"only one SELECT statement is answered at a time, but this has {len(statements) or 'none'}"
        )
    if (kind := statements[0].type) != duckdb.StatementType.SELECT:
        raise UserError(
            f"only SELECT, FROM, SHOW, DESCRIBE and SUMMARIZE are answered, not {kind.name.replace('_', ' ')}"
        )

    if (asked := _ASKED.get()) is not None:
        asked.append(sql)
    try:
        relation = connection.sql(sql)
        as_text = [bool(_AS_TEXT.search(str(kind))) for kind in relation.types]
        if any(as_text):
            names = [name.replace('"', '""') for name in relation.columns]  # several may be the same
            columns = (
                f'#{place}{"::VARCHAR" * text} AS "{name}"'
                for place, (name, text) in enumerate(zip(names, as_text, strict=True), start=1)
            )
            relation = relation.project(", ".join(columns))
        documents = tuple(str(kind) == "JSON" for kind in relation.types)
        reader = relation.to_arrow_reader(_BATCH)
    except duckdb.Error as error:
        raise _refused(error) from error
    batches = _read(reader)
    first = next(batches, None)  # what goes wrong at once goes wrong before anything is written
    schema = reader.schema
    return Answer(tuple(schema.names), documents, schema, chain([] if first is None else [first], batches))


@contextmanager
def recording() -> Iterator[list[str]]:
    """Give a list to which every query that is answered from here on is added."""
    asked: list[str] = []
    token = _ASKED.set(asked)
    try:
        yield asked
    finally:
        _ASKED.reset(token)


def _read(reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    import duckdb
    import pyarrow as pa

    try:
        yield from reader
    except (duckdb.Error, pa.ArrowException, OSError) as error:  # Arrow wraps DuckDB's errors
        raise _refused(error) from error


def _refused(error: Exception) -> UserError:
    example = "; write one such as: SELECT label, final_loss FROM runs"
    return UserError(first_lines(error) + example * ("syntax error" in str(error)))
