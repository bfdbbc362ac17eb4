"""Draws lines over a numeric axis, and below it what became of runs that did not complete."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from math import ceil, floor, log10
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from analysis.charts import _sweep_words as words
from analysis.charts._labels import LONGEST
from analysis.charts._quantities import Quantity
from analysis.charts._style import INK, QUIET, chart, colours, dashes, drawn, right_edge, shapes
from analysis.charts._sweep import Axis, Cell
from analysis.stats import grouped

if TYPE_CHECKING:
    import altair as alt

    from analysis.charts import Row, Styles

_HEIGHT, _LINE = 340, 16  # pixels: of the part with values; of a line of text
_ASIDE, _WIDEST = 0.012, 0.07  # parts of the axis: between the marks of two lines, and of all lines at most
_DECADES = 4  # of a logarithmic axis, up to which more than the powers of ten have room
_CROSS = "M-1,-1L1,1M1,-1L-1,1"


@dataclass(frozen=True)
class Plot:
    """What the layers share.

    Attributes:
        lines: cells by the name of their line, along the axis.
        quiet: the same of lines that are grey and have no name, where there are too many.
        low, high: ends of the vertical axis.
        log: whether it is logarithmic.
    """

    x: Axis
    lines: dict[str, list[Cell]]
    quiet: dict[str, list[Cell]]
    styles: Styles
    quantity: Quantity
    low: float
    high: float
    log: bool

    @cached_property
    def strip(self) -> list[str]:
        """Names of the lines that have a row below the axis, since not all of their runs ended alike."""
        return [
            name
            for name, line in self.lines.items()
            if any(cell.missing for cell in line) and len({cell.word for cell in line}) > 1
        ]

    @cached_property
    def valued(self) -> list[str]:
        """Names of the lines that have any value, and with it marks."""
        return [name for name, line in self.lines.items() if any(cell.estimate for cell in line)]

    @cached_property
    def points(self) -> list[Row]:
        """Every value of the lines with a name."""
        return self._points(self.lines)

    @cached_property
    def grey(self) -> list[Row]:
        """Every value of the others."""
        return self._points(self.quiet)

    def _points(self, lines: dict[str, list[Cell]]) -> list[Row]:
        """`part` numbers the stretches of a line, which a cell without a value ends."""
        found = []
        for name, line in lines.items():
            part = 0
            for cell in line:
                part += cell.estimate is None
                found += self._point(name, part, cell)
        return found

    def _point(self, name: str, part: int, cell: Cell) -> list[Row]:
        it = cell.estimate
        if not it:
            return []
        ends = words.ends(it, self.quantity.number)
        at = cell.at[self.x.name]
        where = {"label": name, "part": part, "at": at, "x": self.aside(name, at)}
        return [where | {"value": it.median, "low": it.low, "high": it.high, "n": it.n, "interval": ends}]

    def aside(self, name: str, at: float) -> float:
        """A value of the axis, moved so that the marks of several lines do not hide each other."""
        if name in self.quiet:
            return at
        first, last = self.x.values[0], self.x.values[-1]
        step = min(_ASIDE, _WIDEST / len(self.valued))
        part = step * (self.valued.index(name) - (len(self.valued) - 1) / 2)
        return float(at * (last / first) ** part) if self.x.base else at + (last - first) * part

    def part(self, value: float) -> float:
        """Where a value lies on the vertical axis: 0 at its low end, 1 at its high end."""
        if self.log:
            return log10(value / self.low) / log10(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def value(self, part: float) -> float:
        """The value that lies there; below the axis where `part` is negative."""
        if self.log:
            return float(self.low * (self.high / self.low) ** part)
        return self.low + part * (self.high - self.low)

    def below(self, row: int) -> float:
        """The value that lies on a row of the strip below the axis."""
        return self.value(-_LINE * (row + 0.75) / _HEIGHT)


def spec(plot: Plot) -> dict[str, Any]:
    """The figure as Vega-Lite, with no more layers than have something to draw."""
    layers = [*_grey(plot), *_joined(plot), *_intervals(plot), *_marks(plot), *_names(plot), *_strip(plot)]
    height = _HEIGHT + (_LINE * len(plot.strip) + 10 if plot.strip else 0)
    return drawn(layers, height, top=6)


def _x(plot: Plot) -> alt.X:
    import altair as alt

    axis = alt.Axis(values=list(plot.x.values), format=plot.x.number, labelOverlap="greedy", grid=False)
    reach = [*plot.x.values, *(point["x"] for point in plot.points)]
    ends = [min(reach), max(reach)]  # marks that stand aside have room, too
    kind: dict[str, Any] = {"type": "log", "base": plot.x.base} if plot.x.base else {"zero": False}
    scale = alt.Scale(domain=ends, nice=False, padding=16, **kind)
    return alt.X("x:Q", title=plot.x.title, scale=scale, axis=axis)


def _y(plot: Plot, field: str = "value") -> alt.Y:
    import altair as alt

    kind: dict[str, Any] = {"type": "log"} if plot.log else {"zero": False}
    scale = alt.Scale(domain=[plot.low, plot.high], range=[_HEIGHT, 0], nice=False, **kind)
    axis = alt.Axis(values=round_values(plot.low, plot.high)) if plot.log else alt.Axis(tickCount=6)
    return alt.Y(f"{field}:Q", title=plot.quantity.title, scale=scale, axis=axis)


def round_values(low: float, high: float) -> list[float]:
    """Of a logarithmic axis: 1, 2 and 5 times each power of ten; the powers alone where those are too many.

    Vega's own leave out the last ones, where the best backends lie.
    """
    powers = range(floor(log10(low)), ceil(log10(high)) + 1)
    digits = (1, 2, 5) if log10(high / low) <= _DECADES else (1,)
    every = [float(f"{digit}e{power}") for power in powers for digit in digits]
    return [value for value in every if low <= value <= high]


def _grey(plot: Plot) -> list[alt.Chart]:
    """The lines without a name, behind the others."""
    import altair as alt

    found = []
    if joined := _stretches(plot.grey):
        line = chart(joined).mark_line(strokeWidth=1, stroke=INK, strokeOpacity=QUIET)
        found.append(
            line.encode(x=_x(plot), y=_y(plot), detail=[alt.Detail("label:N"), alt.Detail("part:O")])
        )
    if plot.grey:
        mark = chart(plot.grey).mark_point(filled=True, size=14, opacity=QUIET, color=INK)
        found.append(mark.encode(x=_x(plot), y=_y(plot), tooltip=_tips(plot)))
    return found


def _stretches(points: list[Row]) -> list[Row]:
    """The points that are joined with another one."""
    return [
        {name: point[name] for name in ("label", "part", "x", "value")}
        for stretch in grouped(points, itemgetter("label", "part")).values()
        if len(stretch) > 1
        for point in stretch
    ]


def _joined(plot: Plot) -> list[alt.Chart]:
    joined = _stretches(plot.points)
    if not joined:
        return []
    line = chart(joined).mark_line(strokeWidth=1.8)
    colour, dash = colours(plot.styles), dashes(plot.styles)
    return [line.encode(x=_x(plot), y=_y(plot), color=colour, detail="part:O", strokeDash=dash)]


def _intervals(plot: Plot) -> list[alt.Chart]:
    known = [point for point in plot.points if point["low"] is not None]
    if not known:
        return []
    bar = chart(known).mark_rule(strokeWidth=2)
    return [bar.encode(x=_x(plot), y=_y(plot, "low"), y2="high:Q", color=colours(plot.styles))]


def _tips(plot: Plot) -> list[alt.Tooltip]:
    import altair as alt

    return [
        alt.Tooltip("label:N", title="group"),
        alt.Tooltip("at:Q", title=plot.x.title, format=plot.x.number),
        alt.Tooltip("value:Q", title=plot.quantity.title, format=plot.quantity.number),
        alt.Tooltip("interval:N"),
        alt.Tooltip("n:Q", title="runs"),
    ]


def _marks(plot: Plot) -> list[alt.Chart]:
    if not plot.points:
        return []
    mark: alt.Chart = chart(plot.points).mark_point(filled=True, size=60, opacity=1)
    colour, shape = colours(plot.styles), shapes(plot.styles)
    return [mark.encode(x=_x(plot), y=_y(plot), color=colour, shape=shape, tooltip=_tips(plot))]


def _names(plot: Plot) -> list[alt.Chart]:
    """Each line's name at the right edge, with its mark: beside its row below the axis, or beside its end."""
    last = {point["label"]: point["value"] for point in plot.points if point["label"] not in plot.strip}
    places = _apart({name: plot.part(value) for name, value in last.items()})
    beside = [{"label": name, "at": plot.value(part), "value": last[name]} for name, part in places.items()]
    below = [{"label": name, "at": plot.below(row)} for row, name in enumerate(plot.strip)]
    if len(beside) + len(below) == 1:
        return []
    edge, colour = right_edge(), colours(plot.styles)
    base = chart([*beside, *below]).encode(x=edge, y=_y(plot, "at"))
    sample = base.mark_point(filled=True, size=50, opacity=1, xOffset=15)
    text = base.mark_text(align="left", dx=23, color=INK, limit=LONGEST)
    text = text.encode(text="label:N").properties(name="beside")
    leader = chart(beside).mark_rule(strokeWidth=0.8, opacity=0.6, xOffset=2, x2Offset=10)
    drawn_leader = leader.encode(x=edge, x2=right_edge(2), y=_y(plot), y2="at:Q", color=colour)
    return [*([drawn_leader] if beside else []), sample.encode(color=colour, shape=shapes(plot.styles)), text]


def _apart(wanted: dict[str, float]) -> dict[str, float]:
    """Places of names on a height of 1, moved so far that no two overlap."""
    room = _LINE / _HEIGHT
    names = sorted(wanted, key=lambda name: wanted[name])
    places: list[float] = []
    for name in names:
        places.append(max(wanted[name], places[-1] + room) if places else wanted[name])
    for index in reversed(range(len(places))):
        top = 1.0 if index == len(places) - 1 else places[index + 1] - room
        places[index] = min(places[index], top)
    return dict(zip(names, places, strict=True))


def _strip(plot: Plot) -> list[alt.Chart]:
    """Below the axis, a row for each line with runs that did not complete: a cross, and how they ended."""
    import altair as alt

    crosses: list[Row] = []
    before: list[Row] = []  # what stands before a cross, or after it
    after: list[Row] = []
    for row, name in enumerate(plot.strip):
        for word, cells in groupby(plot.lines[name], lambda cell: cell.word):
            marks = [
                {"label": name, "x": cell.at[plot.x.name], "at": plot.below(row), "ended": word}
                for cell in cells
            ]
            if word:
                crosses += marks
                first = marks[0]["x"] == plot.x.values[0]  # before it would be outside of the figure
                (after if first else before).append(marks[-1 if first else 0])
    if not crosses:
        return []
    tips = [
        alt.Tooltip("label:N", title="group"),
        alt.Tooltip("x:Q", title=plot.x.title, format=plot.x.number),
        alt.Tooltip("ended:N", title="not completed"),
    ]
    cross = chart(crosses).mark_point(shape=_CROSS, size=60, strokeWidth=2, opacity=1)
    x, y = _x(plot), _y(plot, "at")
    layers = [cross.encode(x=x, y=y, color=colours(plot.styles), tooltip=tips)]
    sides: Any = ((before, "right", -8), (after, "left", 8))
    for said, align, dx in sides:
        if said:
            text = chart(said).mark_text(align=align, dx=dx, fontSize=11, color=INK)
            layers.append(text.encode(x=x, y=y, text="ended:N"))
    return layers
