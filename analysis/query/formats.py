"""An answer in the formats that people paste elsewhere. `query` asks and writes to stdout."""

from __future__ import annotations

import csv
import io
import json
import math
import sys
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from analysis.query.ask import Answer, ask
from model.errors import UserError, did_you_mean


def query(root: Path, sql: str, format: str = "table") -> None:  # noqa: A002 - named as the option is
    """Answer a query on stdout.

    Args:
        root: the workspace whose database is read.
        sql: one DuckDB statement. It can neither write nor reach other files or the network.
        format: one of `FORMATS`. `parquet` writes bytes, the others text.

    Raises:
        UserError: no database, SQL that DuckDB refuses, or an unknown format.
    """
    if format not in FORMATS:
        raise UserError(f"unknown format '{format}' {did_you_mean(format, list(FORMATS))}")
    data = FORMATS[format](ask(root, sql))
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.flush()


def as_table(answer: Answer) -> bytes:
    """A rich table on a terminal; plain aligned columns, at full width, anywhere else."""
    if sys.stdout.isatty():
        return _rich(answer)
    cells = [answer.columns, *(tuple(map(_shown, row)) for row in answer.rows)]
    widths = [max(len(line[index]) for line in cells) for index in range(len(answer.columns))]
    lines = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in cells]
    return ("\n".join(lines) + "\n").encode()


def as_csv(answer: Answer) -> bytes:
    """Comma-separated values (RFC 4180) with a header; NULL is an empty field."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(answer.columns)
    writer.writerows(answer.rows)
    return text.getvalue().encode()


def as_json(answer: Answer) -> bytes:
    """One document: an array of objects. JSON columns are nested; NaN and infinity become null."""
    twice = {name for name in answer.columns if answer.columns.count(name) > 1}
    if twice:
        raise UserError(f"two columns are named '{min(twice)}': rename one of them with AS")
    objects = [
        {
            name: json.loads(value) if document and value else _plain(value)
            for name, value, document in zip(answer.columns, row, answer.documents, strict=True)
        }
        for row in answer.rows
    ]
    return (json.dumps(objects, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def as_parquet(answer: Answer) -> bytes:
    """A Parquet file that keeps the types of the columns."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(answer.table, sink)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def as_latex(answer: Answer) -> bytes:
    r"""A `tabular` with booktabs rules and right-aligned numbers; needs `\usepackage{booktabs}`."""
    numeric = [_is_numeric([row[index] for row in answer.rows]) for index in range(len(answer.columns))]
    rows = [" & ".join(map(_latex, row)) + r" \\" for row in answer.rows]
    lines = [
        rf"\begin{{tabular}}{{{''.join('r' if number else 'l' for number in numeric)}}}",
        r"\toprule",
        " & ".join(map(_latex, answer.columns)) + r" \\",
        r"\midrule",
        *rows,
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return ("\n".join(lines) + "\n").encode()


FORMATS: dict[str, Callable[[Answer], bytes]] = {
    "table": as_table,
    "csv": as_csv,
    "json": as_json,
    "parquet": as_parquet,
    "latex": as_latex,
}


def _rich(answer: Answer) -> bytes:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table()
    for index, name in enumerate(answer.columns):
        number = _is_numeric([row[index] for row in answer.rows])
        table.add_column(escape(name), justify="right" if number else "left", overflow="fold")
    for row in answer.rows:
        table.add_row(*(escape(_shown(value)) for value in row))
    console = Console()
    with console.capture() as captured:
        console.print(table)
    return captured.get().encode()


def _is_numeric(values: list[Any]) -> bool:
    known = [value for value in values if value is not None]
    return bool(known) and all(isinstance(value, int | float | Decimal) for value in known)


def _shown(value: Any) -> str:
    if value is None:
        return "NULL"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _plain(value: Any) -> Any:
    """The value as one that JSON can hold."""
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
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)


_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "&": r"\&",
        "%": r"\%",
        "$": r"\$",
        "#": r"\#",
        "_": r"\_",
        "{": r"\{",
        "}": r"\}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        "\n": " ",
        "\r": " ",
    }
)


def _latex(value: Any) -> str:
    return "--" if value is None else _shown(value).translate(_LATEX)
