"""CSV that a spreadsheet does not take for formulas: a label such as `=HYPERLINK(...)` would run there."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable
from typing import Any

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_NUMBER = re.compile(r"[-+]?\d[\d,]*(\.\d*)?([eE][-+]?\d+)?( %)?")


def lines(rows: Iterable[Iterable[Any]]) -> str:
    """Lines of comma-separated values (RFC 4180), with each cell as `cell` gives it."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([cell(value) for value in row] for row in rows)
    return text.getvalue()


def cell(value: Any) -> Any:
    """The value; text that begins like a formula, and is not a number, gets an apostrophe before it."""
    if isinstance(value, str) and value.startswith(_FORMULA) and not _NUMBER.fullmatch(value):
        return f"'{value}"
    return value
