"""Output of the verbs: tables and JSON on standard output, messages on standard error."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table


def say(text: str) -> None:
    """Print a message on standard error. Quoted text cannot send control codes to the terminal."""
    from model.record.units import harmless

    print(harmless(text), file=sys.stderr, flush=True)


def show(value: object) -> None:
    """Print a result on standard output."""
    print(value)


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table on standard output: drawn on a terminal, plain aligned columns elsewhere.

    Cells may say what others wrote, so none of it steers the terminal.
    """
    from model.record.units import visible

    rows = [[visible(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        from rich.console import Console

        Console().print(_drawn(columns, rows))
        return
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    # One format for all rows is faster than `ljust` for each cell.
    line = "  ".join(f"{{:{width}}}" if width else "{}" for width in widths)
    sys.stdout.writelines(line.format(*row).rstrip() + "\n" for row in (columns, *rows))


def _drawn(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """The table without its empty columns. Nothing is cut off: cells of several words wrap."""
    from rich.box import SIMPLE
    from rich.markup import escape
    from rich.table import Table

    drawn = Table(box=SIMPLE, pad_edge=False)
    cells = list(zip(*rows, strict=True)) or [("",) for _ in columns]
    filled = [place for place, column in enumerate(cells) if any(column) or not rows]
    for place in filled:
        drawn.add_column(
            columns[place], no_wrap=not any(" " in cell for cell in cells[place]), overflow="fold"
        )
    for row in rows:
        drawn.add_row(*(escape(row[place]) for place in filled))
    return drawn


def live(columns: Sequence[str], pages: Iterator[tuple[list[list[str]], str]]) -> None:
    """Show a table on a terminal and update it in place for each page; rows that do not fit are omitted.

    Args:
        pages: rows, most important first, and a summary line.
    """
    from rich.console import Group
    from rich.live import Live

    with Live(auto_refresh=False) as screen:
        for rows, summary in pages:
            fits = max(1, screen.console.height - 6)
            more = f" ({len(rows) - fits} not shown)" if len(rows) > fits else ""
            # Each last cell is truncated so that its row fits on one line.
            whole = list(zip(columns[:-1], *(row[:-1] for row in rows[:fits]), strict=True))
            taken = sum(max(map(len, column)) for column in whole) + 3 * len(columns) + 1
            room = max(len(columns[-1]), screen.console.width - taken)
            cut = [
                [*cells, last if len(last) <= room else f"{last[: room - 1]}…"]
                for *cells, last in rows[:fits]
            ]
            screen.update(Group(_drawn(columns, cut), summary + more), refresh=True)


def print_json(value: Any) -> None:
    """Print one JSON document, indented, on standard output; values of other types as text."""
    from pydantic_core import to_json

    # Not json.dumps, which is slow with an indent: it then uses no C code.
    sys.stdout.write(to_json(value, indent=1, fallback=str).decode() + "\n")
