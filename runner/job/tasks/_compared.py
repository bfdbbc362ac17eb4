"""Rows of a table that compares a run with its repeat."""

from __future__ import annotations

from typing import Any

Row = list[str]
SAME, DIFFERS, UNKNOWN = "same", "differs", "unknown"


def row(what: str, then: Any, now: Any) -> Row:
    """What is compared, the two values, and whether they are the same; a value of None is not known."""
    words = [UNKNOWN if value is None else str(value) for value in (then, now)]
    return [what, *words, UNKNOWN if UNKNOWN in words else SAME if then == now else DIFFERS]
