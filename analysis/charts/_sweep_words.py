"""What the figures over numeric axes say in words, and their values as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from analysis.charts import Table
from analysis.charts._quantities import Quantity
from analysis.charts._sweep import Axis, Cell, Sweep
from analysis.charts._values import capital
from analysis.stats import Estimate
from analysis.wording import in_a_row

_DASH = "\N{EN DASH}"


def swept(axes: Sequence[Axis]) -> str:
    """`sequence length and batch size`."""
    return " and ".join(axis.title for axis in axes)


def abbreviations(cells: Iterable[Cell]) -> list[str]:
    """What the short words for outcomes stand for, of those that are used."""
    return ["OOM: out of memory."] if any("OOM" in cell.word for cell in cells) else []


def interval(cells: Sequence[Cell]) -> str:
    """What the intervals of the cells are: each method with the number of cells that have it."""
    methods = Counter(f"n = {cell.estimate.n}: {cell.estimate.method}" for cell in cells if cell.estimate)
    if len(methods) == 1:
        return next(iter(methods))
    return "; ".join(f"{method} ({count} cells)" for method, count in methods.items())


def notes(found: Sweep, groups: Collection[str] = (), most: int = 0, what: str = "") -> list[str]:
    """What the reader must know first: factors that go together, and what the figure leaves out.

    Args:
        groups: what the figure shows at most so many of; `what` says what they are.
    """
    said = [
        f"{capital(' and '.join(names))} {'varies' if len(names) == 1 else 'vary'} together with {title}."
        for title, names in found.together.items()
    ]
    if len(groups) > most:
        said.append(f"The figure shows the first {most} of {len(groups)} {what}; the table has all values.")
    if found.ambiguous:
        names = in_a_row(found.ambiguous)
        said.append(f"Not shown: {names}, whose runs have the same factors but other settings.")
    return said


def table(found: Sweep, quantity: Quantity) -> Table:
    """Every cell, also of groups beyond those that the figure has room for."""
    heads = ("Group", *(capital(axis.title) for axis in found.axes), capital(quantity.title))
    rows = tuple(_row(cell, found.axes, quantity.number) for cell in found.cells)
    return Table((*heads, "Interval", "n", "Not completed"), rows)


def _row(cell: Cell, axes: Sequence[Axis], number: str) -> tuple[str, ...]:
    it = cell.estimate
    values = (format(it.median, number), ends(it, number), str(it.n)) if it else (_DASH, _DASH, "0")
    return (cell.rest, *(axis.of(cell) for axis in axes), *values, cell.word or _DASH)


def ends(it: Estimate, number: str) -> str:
    """The interval's ends, or a dash."""
    if it.low is None or it.high is None:
        return _DASH
    return f"{it.low:{number}} {_DASH} {it.high:{number}}"


def description(cells: Sequence[Cell], axes: Sequence[Axis], quantity: Quantity) -> str:
    """The smallest and the largest value, with where they are."""
    valued = sorted(((cell.estimate.median, cell) for cell in cells if cell.estimate), key=lambda one: one[0])
    low, high = (
        f"{value:{quantity.number}} ({_where(cell, axes)})" for value, cell in (valued[0], valued[-1])
    )
    gone = len(cells) - len(valued)
    cells_ = "cell has" if gone == 1 else "cells have"
    return f"{quantity.title} from {low} to {high}." + (f" {gone} {cells_} no value." if gone else "")


def _where(cell: Cell, axes: Sequence[Axis]) -> str:
    return ", ".join([cell.rest, *(f"{axis.title} {axis.of(cell)}" for axis in axes)])


def overlap(a: Estimate, b: Estimate) -> bool:
    """Whether two intervals have a value in common; what has no interval is its median."""
    low_a, high_a = (a.median if end is None else end for end in (a.low, a.high))
    low_b, high_b = (b.median if end is None else end for end in (b.low, b.high))
    return low_a <= high_b and low_b <= high_a


def between(numbers: Sequence[str]) -> str:
    """`1.2 to 3.4`, or one number where all read the same."""
    ordered = sorted(set(numbers), key=lambda number: float(number.replace(",", "")))
    return " to ".join(dict.fromkeys((ordered[0], ordered[-1])))
