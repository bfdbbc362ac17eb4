"""Tables of text: on a terminal the columns that fit, with whole numbers; elsewhere all, in plain lines."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from model.record.units import visible

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_GAP = 2  # between columns
_LEAST = 16  # what is left at least of a text that is narrowed so that a further column fits
_LEAST_SHORT = 10  # or half of a short one
_WORD = 40  # a word up to this long is whole, if half of the width will do for it; in the first column, all
_NAMED = 5  # columns that are left out, at most, are named
# Numbers as the tables have them: counts, rates, times, `60/60`, `+5.2 %`.
_NUMBER = re.compile(r"[-+]?\d[\d.,:/]*(?:[eE][-+]?\d+)?")
_NUMERIC = re.compile(rf"|NULL|-?inf|nan|{_NUMBER.pattern}(?:[- +]\d[\d.,:]*)*(?: %)?", re.IGNORECASE)


def one_line(cell: str) -> str:
    r"""The cell as one line that cannot steer the terminal, in which a line break is `\n`."""
    return visible(cell.replace("\r", "\\r").replace("\n", "\\n"))


def plain(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """The lines of a table with all its columns, aligned by spaces."""
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    # One format for all rows is faster than `ljust` for each cell.
    line = "  ".join(f"{{:{width}}}" if width else "{}" for width in widths)
    return (line.format(*row).rstrip() + "\n" for row in (columns, *rows))


def fitted(
    console: Console,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    narrow: bool = True,
    wrap: bool = True,
    right: Collection[int] = (),
) -> RenderableType:
    """The table as a terminal has room for it, then how many columns are left out.

    A single row that does not fit is a block instead, with a line for each column.

    Args:
        narrow: where columns are left out, narrow texts so that fewer are; otherwise show what fits whole.
        wrap: let a text that was narrowed go on in the next line; otherwise it ends with an ellipsis.
        right: places of the columns that are aligned to the right.
    """
    from rich.box import SIMPLE
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    cells = list(zip(*rows, strict=True)) or [()] * len(columns)
    sizes = [
        _size(console, head, cells[place], narrow, unbroken=console.width // (2 if place else 1))
        for place, head in enumerate(columns)
    ]
    widths = _widths(sizes, console.width, narrow)
    narrowed = [size for place, size in enumerate(sizes) if widths.get(place) != size.whole]
    if len(rows) == 1 and (len(widths) < len(sizes) or (narrowed and not wrap)):
        block = Table(box=None, show_header=False, pad_edge=False, padding=(0, _GAP, 0, 0))
        block.add_column(style="bold", max_width=max(1, console.width // 2), overflow="fold")
        block.add_column(overflow="fold")
        for head, cell in zip(columns, rows[0], strict=True):
            block.add_row(Text(head), Text(cell))
        return block
    table = Table(box=SIMPLE, show_edge=False, pad_edge=False, collapse_padding=True)
    for place, width in widths.items():
        table.add_column(
            Text(columns[place]), width=width, justify="right" if place in right else "left", overflow="fold"
        )
    for row in rows:
        table.add_row(*(
            Text(row[place] if wrap or sizes[place].numeric else _cut(row[place], width))
            for place, width in widths.items()
        ))  # fmt: skip
    if absent := [head for place, head in enumerate(columns) if place not in widths]:
        count = f"{len(absent)} of {len(columns)} columns {'is' if len(absent) == 1 else 'are'} left out"
        names = f" ({', '.join(absent)})" if len(absent) <= _NAMED else ""
        return Group(table, Text(f"{count}{names}; `| less -S` shows all"))
    return table


class _Size(NamedTuple):
    """What a column needs, in cells of the terminal.

    Attributes:
        whole: to show all.
        least: to be read, if not all columns would fit otherwise.
        numeric: whether its cells are numbers, which need all.
    """

    whole: int
    least: int
    numeric: bool


def _size(console: Console, head: str, cells: Sequence[str], narrow: bool, unbroken: int) -> _Size:
    from rich.text import Text

    title = Text(head).__rich_measure__(console, console.options)  # its longest word, and its longest line
    text = Text("\n".join(cells)).__rich_measure__(console, console.options)
    if cells and all(map(_NUMERIC.fullmatch, cells)):
        whole = max(title.minimum, text.maximum)
        return _Size(whole, whole, numeric=True)
    whole = max(title.maximum, text.maximum)
    word = text.minimum if text.minimum <= min(_WORD, unbroken) else 0
    least = max(_LEAST_SHORT, min(whole // 2, _LEAST)) if narrow else _LEAST
    return _Size(whole, min(whole, max(title.minimum, word, least)), numeric=False)


def _widths(sizes: Sequence[_Size], width: int, narrow: bool) -> dict[int, int]:
    """The widths of the columns that fit, by their places: all, else as many as can, from the left."""
    widths = {place: size.least for place, size in enumerate(sizes)}
    if sum(widths.values()) + _GAP * (len(sizes) - 1) > width:
        widths, left = {}, width + _GAP
        for place, size in enumerate(sizes):
            needed = size.least if narrow else size.whole
            if not widths or _GAP + needed <= left:
                widths[place] = min(needed, width)
                left -= _GAP + needed
    # The room that is left goes to the texts, first to those that lack least.
    room = width - sum(widths.values()) - _GAP * (len(widths) - 1)
    lacking = sorted(widths, key=lambda place: sizes[place].whole - widths[place])
    for number, place in enumerate(lacking):
        more = min(sizes[place].whole - widths[place], room // (len(lacking) - number))
        widths[place] += more
        room -= more
    return widths


def _cut(text: str, width: int) -> str:
    """The text with an ellipsis in place of what does not fit; a number at that place is left out whole."""
    from rich.cells import cell_len, set_cell_size

    if cell_len(text) <= width:
        return text
    head = set_cell_size(text, width - 1).rstrip()
    for number in _NUMBER.finditer(text[: 2 * width]):
        if number.start() < len(head) < number.end():
            head = head[: number.start()]
    return f"{head}…"
