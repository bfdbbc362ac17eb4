"""A quantity over one numeric axis: a line for each combination of the other factors.

Below the axis stands what became of runs that did not complete.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from math import ceil, floor, log10
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from analysis.charts import Figure
from analysis.charts._quantities import CellQuantity, with_decimals
from analysis.charts._reported import (
    hollow,
    hollow_caption,
    hollow_description,
    hollow_tips,
    mark_rows,
)
from analysis.charts._style import (
    INK,
    LONGEST_NAME,
    QUIET,
    colours,
    dashes,
    inline,
    right_edge,
    shapes,
    styles,
    vega_lite,
)
from analysis.charts._sweep import (
    Sweep,
    SweepAxis,
    SweepCell,
    abbreviations,
    interval_ends,
    interval_methods,
    range_description,
    range_of_numbers,
    sort_into_cells,
    sweep_notes,
    sweep_table,
)
from analysis.charts._values import of_estimates
from analysis.stats import grouped
from analysis.wording import capital

if TYPE_CHECKING:
    import altair as alt

    from analysis.charts import Row, Styles
    from analysis.charts._reported import ReportedMark

MOST_LINES = 12  # lines that can be told apart; of more, the outermost have colour and name
_SPREAD = 20  # of values, from which their axis is logarithmic
_CLAUSES = 2  # lines of which a figure's finding says where they end


def lines_figure(rows: list[Row], quantity: CellQuantity, note: str = "") -> Figure | None:
    """Draw a quantity over the axis with the most values; None if no run has it.

    Args:
        rows: the answer to SWEEP_RUNS.
        note: what to say first.
    """
    if not rows:
        return None
    swept = sort_into_cells(rows, quantity.estimates)
    return lines_over(swept, swept.by([swept.axes[0]]), quantity, note)


def lines_over(
    swept: Sweep, every: dict[str, list[SweepCell]], quantity: CellQuantity, note: str = ""
) -> Figure | None:
    """Draw lines over the first axis of a sweep; None if no cell of theirs has a value.

    Args:
        every: the cells of each line, by its name.
    """
    x = swept.axes[0]
    every = {name: sorted(line, key=lambda cell: cell.at[x.name]) for name, line in every.items()}
    cells = [cell for line in every.values() for cell in line]
    estimates = [cell.estimate for cell in cells if cell.estimate]
    if not estimates:
        return None
    quantity = with_decimals(quantity, estimates)
    shown = every if len(every) <= MOST_LINES else outermost(every, x)
    quiet = {name: line for name, line in every.items() if name not in shown}

    # The vertical axis: logarithmic where its values differ by much, else with room at its ends.
    medians = [estimate.median for estimate in estimates]
    medians += (theirs := [mark.value for line in shown.values() for cell in line for mark in cell.theirs])
    ends = [*theirs, *(end for end in of_estimates(estimates) if end is not None)]
    low, high = min(ends), max(ends)
    log = low > 0 and max(medians) > _SPREAD * min(medians)
    if log:
        low, high = low / 1.15, high * 1.15
    else:
        room = 0.05 * ((high - low) or abs(high) or 1)
        low, high = 0.0 if quantity.zero and low >= 0 else low - room, high + room
    plot = LinesPlot(x, shown, quiet, styles(list(shown)), quantity, low, high, log)

    notes = [note, *sweep_notes(swept)]
    gone = [name for name in plot.lines if name not in plot.strip and name not in plot.valued]
    for word, names in grouped(gone, lambda name: plot.lines[name][0].word).items():
        notes.append(f"No value at all: {'; '.join(names)} ({word}).")
    return Figure(
        spec=_spec(plot),
        caption=f"{_caption(plot)}{hollow_caption(plot.theirs)}",
        description=(
            f"Line plot over {x.title}: {range_description(cells, swept.axes, quantity)}"
            f"{hollow_description(plot.theirs)}"
        ),
        interval=interval_methods(cells),
        used=frozenset(run for cell in cells if cell.estimate for run in cell.shown),
        title=f"{capital(quantity.name)} over {x.title}",
        note=" ".join(notes).strip() or None,
        finding=_finding(plot),
        table=sweep_table(swept, quantity),
    )


def outermost(every: dict[str, list[SweepCell]], x: SweepAxis) -> dict[str, list[SweepCell]]:
    """The lines that are the highest or the lowest at the ends or in the middle of the axis."""
    extremes = set()
    for at in _looked_at(x):
        here = {
            name: cell.estimate.median
            for name, line in every.items()
            for cell in line
            if cell.estimate and cell.at[x.name] == at
        }
        if here:
            extremes |= {end(here, key=lambda name: here[name]) for end in (min, max)}
    return {name: line for name, line in every.items() if name in extremes}


def _looked_at(x: SweepAxis) -> list[float]:
    return [x.values[0], x.values[len(x.values) // 2], x.values[-1]]


def _caption(plot: LinesPlot) -> str:
    """What is drawn, no more: a mark may have no interval."""
    without = [point["low"] is None for point in plot.points]
    marks = f"Marks: {plot.quantity.numbers}."
    if not all(without):
        estimates = [cell.estimate for line in plot.lines.values() for cell in line if cell.estimate]
        of_runs = {one.n > 1 for one in estimates if one.is_range}
        ranges = " or ranges of a run's records" if False in of_runs else ""
        ranges += " or ranges of the runs" if True in of_runs else ""
        marks += f" Bars: intervals{ranges}{' where there is one' if any(without) else ''}."
    sentences = [plot.quantity.what, marks]
    if plot.quiet:
        at = [plot.x.text(value) for value in _looked_at(plot.x)]
        sentences.append(
            f"Of {len(plot.lines) + len(plot.quiet)} lines, those that are the highest or the lowest at "
            f"{plot.x.title} {at[0]}, {at[1]} or {at[2]} have colours, names and intervals; pointer and "
            "arrow keys name the others."
        )
        gone = sum(not cell.estimate for line in plot.quiet.values() for cell in line)
        if gone:
            cells = "1 cell of a grey line has" if gone == 1 else f"{gone} cells of the grey lines have"
            sentences.append(f"{cells} no value.")
    if len(plot.lines) > 1:
        sentences.append("Side by side: one value.")
    logarithmic = [
        title for title, log in ((plot.x.title, plot.x.base), (plot.quantity.name, plot.log)) if log
    ]
    if logarithmic:
        sentences.append(f"Logarithmic: {' and '.join(logarithmic)}.")
    if not plot.log and plot.low != 0:
        sentences.append("The vertical axis does not start at zero.")
    if plot.strip:
        sentences.append(f"Crosses below the axis: {plot.quantity.gone}.")
    return " ".join([*sentences, *abbreviations(cell for line in plot.lines.values() for cell in line)])


def _finding(plot: LinesPlot) -> str | None:
    """The last value against the first on lines that have both; None if any line's intervals overlap."""
    first, last = plot.x.values[0], plot.x.values[-1]
    pairs = [
        (line[0].estimate, line[-1].estimate)
        for line in (*plot.lines.values(), *plot.quiet.values())
        if (line[0].at[plot.x.name], line[-1].at[plot.x.name]) == (first, last)
    ]
    both_known = [(a, b) for a, b in pairs if a and b]
    if not both_known or any(a.overlaps(b) for a, b in both_known):
        return None
    counts = [estimate.n for pair in both_known for estimate in pair]
    once = " (one run each)" if set(counts) == {1} else " (some of one run)" if 1 in counts else ""
    if plot.quantity.zero:
        ratios = [b.median / a.median for a, b in both_known]
        changes = [f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:.2g}" for ratio in ratios]
        by = f"{range_of_numbers(changes)} times that at"
    else:
        changes = [f"{b.median - a.median:+.2g}" for a, b in both_known]
        by = f"{range_of_numbers(changes)} against that at"
    name = capital(plot.quantity.name)
    sentence = f"{name} at {plot.x.title} {plot.x.text(last)}: {by} {plot.x.text(first)}{once}"

    # From where on lines have no value, if that is all that happened to them, and there are few of them.
    clauses = []
    for label in plot.strip:
        line = plot.lines[label]
        start = next(place for place, cell in enumerate(line) if cell.word)
        rest = line[start:]
        if start and len({cell.word for cell in rest}) == 1 and not any(cell.estimate for cell in rest):
            clauses.append(f"{label}: {rest[0].word} from {plot.x.of(rest[0])}")
    return "; ".join([sentence, *clauses]) if len(clauses) <= _CLAUSES else sentence


_HEIGHT, _LINE = 340, 16  # pixels: of the part with values; of a line of text
_ASIDE, _WIDEST = 0.012, 0.07  # parts of the axis: between the marks of two lines, and of all lines at most
_DECADES = 4  # of a logarithmic axis, up to which more than the powers of ten have room
_CROSS = "M-1,-1L1,1M1,-1L-1,1"


@dataclass(frozen=True)
class LinesPlot:
    """What the layers share.

    Attributes:
        lines: cells by the name of their line, along the axis.
        quiet: the same of lines that are grey and have no name, where there are too many.
        low, high: ends of the vertical axis.
        log: whether it is logarithmic.
    """

    x: SweepAxis
    lines: dict[str, list[SweepCell]]
    quiet: dict[str, list[SweepCell]]
    styles: Styles
    quantity: CellQuantity
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
    def theirs(self) -> dict[str, tuple[ReportedMark, ...]]:
        """What others report along the lines with a name."""
        marks = {
            name: tuple(mark for cell in line for mark in cell.theirs) for name, line in self.lines.items()
        }
        return {name: own for name, own in marks.items() if own}

    @cached_property
    def points(self) -> list[Row]:
        """Every value of the lines with a name."""
        return self._points(self.lines)

    @cached_property
    def grey(self) -> list[Row]:
        """Every value of the others."""
        return self._points(self.quiet)

    def _points(self, lines: dict[str, list[SweepCell]]) -> list[Row]:
        """`part` numbers the stretches of a line, which a cell without a value ends."""
        rows = []
        for name, line in lines.items():
            part = 0
            for cell in line:
                if (estimate := cell.estimate) is None:
                    part += 1
                    continue
                at = cell.at[self.x.name]
                rows.append(
                    {
                        "label": name,
                        "part": part,
                        "at": at,
                        "x": self.aside(name, at),
                        "value": estimate.median,
                        "low": estimate.low,
                        "high": estimate.high,
                        "n": estimate.n,
                        "interval": interval_ends(estimate, self.quantity.number),
                    }
                )
        return rows

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


def _spec(plot: LinesPlot) -> dict[str, Any]:
    """The figure as Vega-Lite, with no more layers than have something to draw."""
    import altair as alt

    x, y = _x(plot), _y(plot)
    colour, shape = colours(plot.styles), shapes(plot.styles)
    tips = [
        alt.Tooltip("label:N", title="group"),
        alt.Tooltip("at:Q", title=plot.x.title, format=plot.x.number),
        alt.Tooltip("value:Q", title=plot.quantity.title, format=plot.quantity.number),
        alt.Tooltip("interval:N"),
        alt.Tooltip("n:Q", title="runs"),
    ]
    layers = []

    # The lines without a name, behind the others.
    if joined := _stretches(plot.grey):
        line = inline(joined).mark_line(strokeWidth=1, stroke=INK, strokeOpacity=QUIET)
        layers.append(line.encode(x=x, y=y, detail=[alt.Detail("label:N"), alt.Detail("part:O")]))
    if plot.grey:
        mark = inline(plot.grey).mark_point(filled=True, size=14, opacity=QUIET, color=INK)
        layers.append(mark.encode(x=x, y=y, tooltip=tips))

    if joined := _stretches(plot.points):
        line, dash = inline(joined).mark_line(strokeWidth=1.8), dashes(plot.styles)
        layers.append(line.encode(x=x, y=y, color=colour, detail="part:O", strokeDash=dash))
    if with_interval := [point for point in plot.points if point["low"] is not None]:
        bar = inline(with_interval).mark_rule(strokeWidth=2)
        layers.append(bar.encode(x=x, y=_y(plot, "low"), y2="high:Q", color=colour))
    if plot.points:
        mark = inline(plot.points).mark_point(filled=True, size=60, opacity=1)
        layers.append(mark.encode(x=x, y=y, color=colour, shape=shape, tooltip=tips))

    if plot.theirs:
        rows = [
            {"x": plot.aside(name, cell.at[plot.x.name]), **row}
            for name, line in plot.lines.items()
            for cell in line
            for row in mark_rows({name: cell.theirs})
        ]
        mark = hollow(rows).encode(x=x, y=y, color=colour)
        layers.append(mark.encode(tooltip=hollow_tips(plot.quantity.title)))
    layers += [*_names(plot), *_strip(plot)]
    height = _HEIGHT + (_LINE * len(plot.strip) + 10 if plot.strip else 0)
    return vega_lite(layers, height, top=6)


def _x(plot: LinesPlot) -> alt.X:
    import altair as alt

    axis = alt.Axis(values=list(plot.x.values), format=plot.x.number, labelOverlap="greedy", grid=False)
    reach = [*plot.x.values, *(point["x"] for point in plot.points)]
    ends = [min(reach), max(reach)]  # marks that stand aside have room, too
    kind: dict[str, Any] = {"type": "log", "base": plot.x.base} if plot.x.base else {"zero": False}
    scale = alt.Scale(domain=ends, nice=False, padding=16, **kind)
    return alt.X("x:Q", title=plot.x.title, scale=scale, axis=axis)


def _y(plot: LinesPlot, field: str = "value") -> alt.Y:
    import altair as alt

    kind: dict[str, Any] = {"type": "log"} if plot.log else {"zero": False}
    scale = alt.Scale(domain=[plot.low, plot.high], range=[_HEIGHT, 0], nice=False, **kind)
    axis = alt.Axis(values=round_values(plot.low, plot.high)) if plot.log else alt.Axis(tickCount=6)
    return alt.Y(f"{field}:Q", title=plot.quantity.title, scale=scale, axis=axis)


def round_values(low: float, high: float) -> list[float]:
    """Values of a logarithmic axis: 1, 2 and 5 times powers of ten, or those alone where they are many.

    Vega's own leave out the last ones, where the best backends lie.
    """
    powers = range(floor(log10(low)), ceil(log10(high)) + 1)
    digits = (1, 2, 5) if log10(high / low) <= _DECADES else (1,)
    every = [float(f"{digit}e{power}") for power in powers for digit in digits]
    return [value for value in every if low <= value <= high]


def _stretches(points: list[Row]) -> list[Row]:
    """The points that are joined with another one."""
    return [
        {name: point[name] for name in ("label", "part", "x", "value")}
        for stretch in grouped(points, itemgetter("label", "part")).values()
        if len(stretch) > 1
        for point in stretch
    ]


def _names(plot: LinesPlot) -> list[alt.Chart]:
    """Each line's name at the right edge, with its mark: beside its row below the axis, or beside its end."""
    last = {point["label"]: point["value"] for point in plot.points if point["label"] not in plot.strip}

    # Places on a height of 1, moved so far that no two names overlap.
    room = _LINE / _HEIGHT
    names = sorted(last, key=lambda name: plot.part(last[name]))
    places: list[float] = []
    for name in names:
        end = plot.part(last[name])
        places.append(max(end, places[-1] + room) if places else end)
    for index in reversed(range(len(places))):
        top = 1.0 if index == len(places) - 1 else places[index + 1] - room
        places[index] = min(places[index], top)

    beside = [
        {"label": name, "at": plot.value(part), "value": last[name]}
        for name, part in zip(names, places, strict=True)
    ]
    below = [{"label": name, "at": plot.below(row)} for row, name in enumerate(plot.strip)]
    if len(beside) + len(below) == 1:
        return []
    edge, colour = right_edge(), colours(plot.styles)
    base = inline([*beside, *below]).encode(x=edge, y=_y(plot, "at"))
    sample = base.mark_point(filled=True, size=50, opacity=1, xOffset=15)
    text = base.mark_text(align="left", dx=23, color=INK, limit=LONGEST_NAME)
    text = text.encode(text="label:N").properties(name="beside")
    leader = inline(beside).mark_rule(strokeWidth=0.7, opacity=QUIET, stroke=INK, xOffset=2, x2Offset=10)
    drawn_leader = leader.encode(x=edge, x2=right_edge(2), y=_y(plot), y2="at:Q")
    return [*([drawn_leader] if beside else []), sample.encode(color=colour, shape=shapes(plot.styles)), text]


def _strip(plot: LinesPlot) -> list[alt.Chart]:
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
    cross = inline(crosses).mark_point(shape=_CROSS, size=60, strokeWidth=2, opacity=1)
    x, y = _x(plot), _y(plot, "at")
    layers = [cross.encode(x=x, y=y, color=colours(plot.styles), tooltip=tips)]
    sides: Any = ((before, "right", -8), (after, "left", 8))
    for marks_there, align, dx in sides:
        if marks_there:
            text = inline(marks_there).mark_text(align=align, dx=dx, fontSize=11, color=INK)
            layers.append(text.encode(x=x, y=y, text="ended:N"))
    return layers
