"""An answer in the formats that people paste elsewhere. `query` asks and writes to stdout."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import sys
from collections.abc import Callable, Iterable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from analysis.query import screen
from analysis.query.ask import Answer, stream
from analysis.query.latex import escaped, tabular
from analysis.store.database import open_for_reading
from analysis.store.tables import leave_out, removed_runs
from model.record.errors import UserError, did_you_mean

if TYPE_CHECKING:
    import pyarrow as pa
    from _typeshed import ReadableBuffer as Buffer

_ROW_GROUP_BYTES, _ROW_GROUP_BATCHES = 16 * 2**20, 64


def query(
    root: Path,
    sql: str,
    format: str = "table",  # noqa: A002 - named as the option is
    study: str | None = None,
) -> None:
    """Answer a query on stdout; CSV, JSON and Parquet while it is being answered.

    Args:
        root: the workspace whose database is read.
        sql: one SELECT. It can neither write nor reach other files or the network.
        format: one of `FORMATS`. `parquet` writes bytes, the others text.
        study: answer as its report does, without the runs that it no longer has.

    Raises:
        UserError: no database, SQL that is refused or fails, or an unknown format.
    """
    if format not in FORMATS:
        raise UserError(f"unknown format '{format}' {did_you_mean(format, list(FORMATS))}")
    sys.stdout.flush()
    with open_for_reading(root) as connection:
        if study:
            leave_out(connection, study, removed_runs(connection, study))
        FORMATS[format](stream(connection, sql), sys.stdout.buffer)
    sys.stdout.flush()


def write_table(answer: Answer, out: BinaryIO) -> None:
    """The columns that fit a terminal, with whole numbers; elsewhere all, in plain aligned columns."""
    columns = [screen.one_line(name) for name in answer.columns]
    rows = [[screen.one_line(_shown(value)) for value in row] for row in answer.rows]
    if not sys.stdout.isatty():
        out.writelines(line.encode() for line in screen.plain(columns, rows))
        return
    from rich.console import Console

    numeric = [place for place in range(len(columns)) if _is_numeric([row[place] for row in answer.rows])]
    console = Console()
    with console.capture() as captured:
        console.print(screen.fitted(console, columns, rows, narrow=False, wrap=False, right=numeric))
    out.write(captured.get().encode())


def write_csv(answer: Answer, out: BinaryIO) -> None:
    """Comma-separated values with a header, safe in a spreadsheet; NULL is an empty field."""
    for rows in chain([[answer.columns]], answer.pieces()):
        out.write(csv_lines(rows).encode())


def write_json(answer: Answer, out: BinaryIO) -> None:
    """One document: an array of objects. JSON columns are nested; NaN and infinity become null."""
    from pydantic_core import (
        to_json,
    )  # with an indent, json.dumps uses no C code and takes four times as long

    twice = {name for name in answer.columns if answer.columns.count(name) > 1}
    if twice:
        raise UserError(f"two columns are named '{min(twice)}': rename one of them with AS")
    before = b"[\n "
    for rows in answer.pieces():
        for row in rows:
            values_by_name = {
                name: _plain(json.loads(value) if document and value else value)
                for name, value, document in zip(answer.columns, row, answer.documents, strict=True)
            }
            # One deeper; a newline in a string is escaped.
            out.write(before + to_json(values_by_name, indent=1).replace(b"\n", b"\n "))
            before = b",\n "
    out.write(b"[]\n" if before.startswith(b"[") else b"\n]\n")


def write_parquet(answer: Answer, out: BinaryIO) -> None:
    """A Parquet file that keeps the types of the columns."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.PythonFile(_Pipe(out), mode="w")
    with pq.ParquetWriter(sink, answer.schema) as writer:
        group: list[pa.RecordBatch] = []  # large enough for a file, and small enough for memory
        for batch in answer.batches:
            group.append(batch)
            if sum(part.nbytes for part in group) >= _ROW_GROUP_BYTES or len(group) == _ROW_GROUP_BATCHES:
                writer.write_table(pa.Table.from_batches(group, answer.schema))
                group = []
        if group:
            writer.write_table(pa.Table.from_batches(group, answer.schema))


class _Pipe(io.RawIOBase):
    """A stream that knows its position and stays open, although Arrow closes what it is given."""

    def __init__(self, out: BinaryIO) -> None:
        self._out, self._written = out, 0

    def writable(self) -> bool:
        return True

    def write(self, data: Buffer) -> int:
        self._out.write(data)
        self._written += memoryview(data).nbytes
        return memoryview(data).nbytes

    def tell(self) -> int:
        return self._written


def write_latex(answer: Answer, out: BinaryIO) -> None:
    r"""A `tabular` with booktabs rules and right-aligned numbers; needs `\usepackage{booktabs}`."""
    numeric = [_is_numeric([row[index] for row in answer.rows]) for index in range(len(answer.columns))]
    columns = "".join("r" if number else "l" for number in numeric)
    rows = (tuple(map(_latex, row)) for row in answer.rows)
    out.write(tabular(columns, tuple(map(_latex, answer.columns)), rows).encode())


FORMATS: dict[str, Callable[[Answer, BinaryIO], None]] = {
    "table": write_table,
    "csv": write_csv,
    "json": write_json,
    "parquet": write_parquet,
    "latex": write_latex,
}


def _is_numeric(values: list[Any]) -> bool:
    given = [value for value in values if value is not None]
    return bool(given) and all(isinstance(value, int | float | Decimal) for value in given)


def _shown(value: Any) -> str:
    if value is None:
        return "NULL"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _plain(value: Any) -> Any:
    """The value as one that JSON can hold."""
    if value is None or type(value) in (str, int, bool):  # most are, so this comes first
        return value
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, bool | int | float | str):
        return value
    return str(value)


def _latex(value: Any) -> str:
    return "--" if value is None else escaped(_shown(value))


_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_NUMBER = re.compile(r"[-+]?\d[\d,]*(\.\d*)?([eE][-+]?\d+)?( %)?")


def csv_lines(rows: Iterable[Iterable[Any]]) -> str:
    """Lines of comma-separated values (RFC 4180), with each cell as `csv_cell` gives it."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([csv_cell(value) for value in row] for row in rows)
    return text.getvalue()


def csv_cell(value: Any) -> Any:
    """The value; text that begins like a formula, and is not a number, gets an apostrophe before it."""
    if isinstance(value, str) and value.startswith(_FORMULA) and not _NUMBER.fullmatch(value):
        return f"'{value}"
    return value
