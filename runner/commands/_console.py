"""What a verb prints: tables and JSON on stdout, sentences on stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table


def say(text: str) -> None:
    """A line on stderr."""
    print(text, file=sys.stderr, flush=True)


def show(value: object) -> None:
    """A line on stdout."""
    print(value)


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str | None = None) -> None:
    """A table on stdout: drawn on a terminal, aligned plain columns elsewhere, never cut."""
    if sys.stdout.isatty():
        from rich.console import Console

        Console().print(_drawn(columns, rows, title))
        return
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    line = "  ".join(f"{{:{width}}}" if width else "{}" for width in widths)  # half of ljust's time a cell
    sys.stdout.writelines(line.format(*row).rstrip() + "\n" for row in (columns, *rows))


def _drawn(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str | None = None) -> Table:
    from rich.markup import escape
    from rich.table import Table

    drawn = Table(*columns, title=title)
    for row in rows:
        drawn.add_row(*map(escape, row))
    return drawn


def _one_line_each(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[list[str]]:
    """The rows, each last cell cut to what the others leave of the width."""
    taken = sum(
        max(map(len, column)) for column in zip(columns[:-1], *(row[:-1] for row in rows), strict=True)
    )
    room = max(len(columns[-1]), width - taken - 3 * len(columns) - 1)
    return [[*row[:-1], row[-1] if len(row[-1]) <= room else f"{row[-1][: room - 1]}…"] for row in rows]


def live(columns: Sequence[str], pages: Iterator[tuple[list[list[str]], str]]) -> None:
    """A table on a terminal that is drawn anew in its place, as many rows as fit, until there are no more.

    Args:
        pages: the rows, the most interesting first, and a line that sums them up.
    """
    from rich.console import Group
    from rich.live import Live

    with Live(auto_refresh=False) as screen:
        for rows, summary in pages:
            fits = max(1, screen.console.height - 6)
            more = f", {len(rows) - fits} of them not shown" if len(rows) > fits else ""
            screen.update(
                Group(
                    _drawn(columns, _one_line_each(columns, rows[:fits], screen.console.width)),
                    summary + more,
                ),
                refresh=True,
            )


def print_json(value: Any) -> None:
    """Print one JSON document on stdout."""
    from pydantic_core import to_json

    # json.dumps has no C code for an indent: 0.4 s for the status of 10,000 runs, where this takes 0.03 s.
    sys.stdout.write(to_json(value, indent=1, fallback=str).decode() + "\n")
