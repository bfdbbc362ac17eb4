"""CSV that a spreadsheet does not take for formulas: a label such as `=HYPERLINK(...)` would run there."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from typing import Any, TextIO

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_NUMBER = re.compile(r"[-+]?\d[\d,]*(\.\d*)?([eE][-+]?\d+)?( %)?")


def write_rows(out: TextIO, rows: Iterable[Iterable[Any]]) -> None:
    """Write lines of comma-separated values (RFC 4180), with each cell as `cell` gives it."""
    csv.writer(out, lineterminator="\n").writerows([cell(value) for value in row] for row in rows)


def cell(value: Any) -> Any:
    """The value; a text that begins like a formula, and is no number, with an apostrophe before it."""
    if isinstance(value, str) and value.startswith(_FORMULA) and not _NUMBER.fullmatch(value):
        return f"'{value}"
    return value
