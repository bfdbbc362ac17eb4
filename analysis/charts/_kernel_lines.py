"""Figures of attention alone: a line for each backend over shapes that differ in one thing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from analysis import stats
from analysis.charts import Figure, Table
from analysis.charts import _sweep_words as words
from analysis.charts._kernels import HOW, Over, Point, Slice, mode_of, names, points, slices
from analysis.charts._quantities import Quantity, fitted
from analysis.charts._sweep import Axis, Cell, Sweep
from analysis.charts._sweep_lines import over as lines_over
from analysis.charts._values import capital
from analysis.wording import readable

if TYPE_CHECKING:
    from analysis.charts import Row, Styles

Value = Callable[[Point], stats.Estimate | None]
Gone = Callable[[Point], dict[str, int]]
CALLS = "the median of a shape's calls"
GONE = "no time there, and why"


@dataclass(frozen=True)
class Measure:
    """A quantity of a backend at a shape.

    Attributes:
        of: all points -> what gives a point its value.
        highest: whether more is better.
        among: all points -> those that the figure is about.
        gone: all points -> what says of a point how runs without a time ended, in a word, and how many.
        how: how the calls were made; as most of them were where it is empty.
        against: the backend that all are compared with; empty without one.
    """

    quantity: Quantity
    of: Callable[[list[Point]], Value]
    highest: bool = False
    among: Callable[[list[Point]], list[Point]] = lambda points: points
    gone: Callable[[list[Point]], Gone] = lambda _points: Point.gone
    how: str = ""
    against: str = ""


def quantity(name: str, unit: str, number: str, what: str, numbers: str = CALLS) -> Quantity:
    """A quantity whose values come from points, not from runs."""
    return Quantity(name, unit, number, what, lambda _rows: {}, True, GONE, numbers)


def lines(over: Over, measure: Measure) -> Callable[[list[Row], Styles], Figure | None]:
    """How a chart file builds its figure."""
    return lambda rows, _styles: _figure(rows, over, measure)


def has(over: Over) -> Callable[[list[Row]], bool]:
    """Whether a study has shapes that differ in this alone."""
    return lambda rows: bool(slices(points(rows), over))


def _figure(rows: list[Row], over: Over, measure: Measure) -> Figure | None:
    found = points(rows)
    value, gone = measure.of(found), measure.gone(found)
    every = slices(measure.among(found), over, known=lambda point: value(point) is not None)
    if not every:
        return None
    shown, cell = every[0], partial(_cell, over=over, value=value, gone=gone)
    mine = [cell(point, name=point.attention) for point in shown.points]
    known = [each.estimate for each in mine if each.estimate]
    if not known:
        return None
    exact = fitted(measure.quantity, known)
    x = axis(over, shown.points)
    by_name = {name: [each for each in mine if each.rest == name] for name in names(found)}
    by_name = {
        name: line for name, line in by_name.items() if any(each.estimate or each.word for each in line)
    }
    figure = lines_over(Sweep((x,), {}, tuple(mine), ()), by_name, measure.quantity)
    if figure is None:
        return None
    return replace(
        figure,
        title=f"{capital(exact.name)} over {over.title}",
        caption=f"{figure.caption} {measure.how or HOW[mode_of(rows)]}: {shown.fixed}.{_others(every)}",
        used=frozenset(run for each in every for point in each.points for run in point.runs),
        finding=_finding(by_name, x, measure, exact),
        table=_table(every, over, cell, exact),
    )


def axis(over: Over, found: list[Point]) -> Axis:
    """The axis with the values of these points."""
    return Axis(over.title, over.title, tuple(sorted({over.at(point) for point in found})))


def _cell(point: Point, name: str, over: Over, value: Value, gone: Gone) -> Cell:
    at = {over.title: over.at(point)}
    return Cell(point.attention, at, name, value(point), gone(point), len(point.runs), point.runs)


def _others(every: list[Slice]) -> str:
    if len(every) == 1:
        return ""
    return f" The table has {len(every) - 1} more such series, at other fixed values."


def _table(every: list[Slice], over: Over, cell: Callable[..., Cell], exact: Quantity) -> Table:
    all_points = [(point, f"{point.attention}; {each.fixed}") for each in every for point in each.points]
    cells = [cell(point, name=name) for point, name in all_points]
    whole = axis(over, [point for each in every for point in each.points])
    return words.table(Sweep((whole,), {}, tuple(cells), ()), exact)


def _finding(by_name: dict[str, list[Cell]], x: Axis, measure: Measure, exact: Quantity) -> str | None:
    """The best and the worst where the most backends have a value, as far along the axis as that is so."""
    at = {value: _there(by_name, x, value) for value in x.values}
    last = max(x.values, key=lambda value: (len(at[value]), value))
    others = [name for name in at[last] if name != measure.against]
    ordered = sorted(others, key=lambda name: at[last][name], reverse=measure.highest)
    if not ordered:
        return None
    ends = dict.fromkeys((ordered[0], ordered[-1]))
    unit = f" {exact.unit}" if exact.unit else ""
    said = [f"{readable(at[last][name], measure.quantity.number)}{unit} ({name})" for name in ends]
    return f"Observed: {exact.name} of {' to '.join(said)} at {x.title} {x.text(last)}"


def _there(by_name: dict[str, list[Cell]], x: Axis, value: float) -> dict[str, float]:
    return {
        name: cell.estimate.median
        for name, line in by_name.items()
        for cell in line
        if cell.estimate and cell.at[x.name] == value
    }
