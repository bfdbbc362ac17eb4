"""Output of the verbs: tables and JSON on standard output, messages on standard error."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any


def say(text: str) -> None:
    """Print a message on standard error. Quoted text cannot send control codes to the terminal."""
    from model.record.units import harmless

    print(harmless(text), file=sys.stderr, flush=True)


def show(value: object) -> None:
    """Print a result on standard output."""
    print(value)


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table on standard output: as much as a terminal has room for, and all of it elsewhere.

    Cells may say what others wrote, so none of it steers the terminal.
    """
    from analysis.query import screen

    rows = [[screen.one_line(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        from rich.console import Console

        console = Console()
        console.print(screen.fitted(console, *_without_empty(columns, rows)))
        return
    sys.stdout.writelines(screen.plain(columns, rows))


def _without_empty(
    columns: Sequence[str], rows: Sequence[Sequence[str]]
) -> tuple[list[str], list[list[str]]]:
    """The table without its empty columns."""
    filled = [place for place in range(len(columns)) if not rows or any(row[place] for row in rows)]
    return [columns[place] for place in filled], [[row[place] for place in filled] for row in rows]


def live(columns: Sequence[str], pages: Iterator[tuple[list[list[str]], str]]) -> None:
    """Show a table on a terminal and update it in place for each page; rows that do not fit are omitted.

    Args:
        pages: rows, most important first, and a summary line.
    """
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    from analysis.query import screen

    with Live(auto_refresh=False) as display:
        for rows, summary in pages:
            fits = max(1, display.console.height - 7)  # less the head and what is said below
            more = f" ({len(rows) - fits} not shown)" if len(rows) > fits else ""
            shown = [[screen.one_line(cell) for cell in row] for row in rows[:fits]]
            drawn = screen.fitted(display.console, *_without_empty(columns, shown), wrap=False)
            display.update(Group(drawn, Text(summary + more)), refresh=True)


def print_json(value: Any) -> None:
    """Print one JSON document, indented, on standard output; values of other types as text."""
    from pydantic_core import to_json

    # Not json.dumps, which is slow with an indent: it then uses no C code.
    sys.stdout.write(to_json(value, indent=1, fallback=str).decode() + "\n")
