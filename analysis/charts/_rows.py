"""Figures of one row per label: its name, a mark for each run, the median with its interval, and a number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from analysis import stats
from analysis.charts import Figure, Row, Styles
from analysis.charts._reported import (
    ReportedMark,
    hollow,
    hollow_caption,
    hollow_description,
    hollow_tips,
    mark_rows,
    marks_of,
)
from analysis.charts._style import (
    INK,
    LONGEST_NAME,
    axis_ends,
    colours,
    inline,
    packed,
    right_edge,
    shapes,
    styles_for,
    vega_lite,
)
from analysis.charts._values import Ends, d3, estimates_table, fitting, names, range_of
from analysis.wording import methods, number

if TYPE_CHECKING:
    import altair as alt

TOP = 22  # pixels above the rows, for the head of the column
_LINE = 14  # pixels of a line of a row's name
_LONG = 20  # characters, beyond which a name is broken at its commas
_MANY, _TALL, _LOW = 24, 30, 18  # rows, beyond which they are lower; pixels of a row


def rows_height(labels: Sequence[str]) -> int:
    """Pixels of all rows."""
    lines = max((len(label.split(", ")) for label in labels), default=1) if _on_several_lines(labels) else 1
    return len(labels) * max(_LOW if len(labels) > _MANY else _TALL, _LINE * lines + 6)


def y_of(labels: Sequence[str], field: str = "label", grid: bool = True) -> alt.Y:
    """The rows, from the top in the order of the labels."""
    import altair as alt

    how: dict[str, Any] = {}
    if _on_several_lines(labels):
        # Names broken at their commas, around the middle of their row: Vega puts the first line there.
        how["labelExpr"] = "split(datum.label, ', ')"
        up = [
            {"test": f"length(split(datum.label, ', ')) === {many}", "value": -_LINE * (many - 1) / 2}
            for many in sorted({len(label.split(", ")) for label in labels} - {1})
        ]
        if up:
            how["labelOffset"] = {"condition": up, "value": 0}
    axis = alt.Axis(labelLimit=LONGEST_NAME, labelPadding=8, grid=grid, **how)
    # The order is a domain: as a sort it would become an expression that contains the labels' text.
    scale = alt.Scale(domain=list(labels))
    return alt.Y(f"{field}:N", scale=scale, sort=None, title=None, axis=axis)


def number_column(rows: list[Row], y: alt.Y, head: str, field: str, number: str) -> list[alt.Chart]:
    """A column of numbers to the right of the plot, with a head.

    Args:
        y: of `y_of`.
        number: d3 format.
    """
    import altair as alt

    top: Any = alt.YValue
    place: dict[str, Any] = {"align": "right", "dx": 56, "color": INK}
    text = inline(rows).mark_text(**place)
    above = inline([{"text": head}]).mark_text(**place, opacity=0.8)
    return [
        text.encode(x=right_edge(), y=y, text=alt.Text(f"{field}:Q", format=d3(number))),
        above.encode(x=right_edge(), y=top(-12), text="text:N"),
    ]


def interval_lines(rows: list[Row], low: alt.X, **encoding: Any) -> list[alt.Chart]:
    """A layer of lines from `low` to `high`, of the rows that have an interval.

    No layer where none has: an empty one is an image without a name to a screen reader.
    """
    with_interval = [row for row in rows if row["low"] is not None and row["high"] is not None]
    if not with_interval:
        return []
    line = inline(with_interval).mark_rule(strokeWidth=2.5, strokeCap="round")
    return [line.encode(x=low, x2="high:Q", **encoding)]


def _on_several_lines(labels: Sequence[str]) -> bool:
    return any(len(label) > _LONG for label in labels) and len(labels) <= _MANY


_BREAK = "M-0.9,1L-0.3,-1M0.3,1L0.9,-1"  # the sign of an axis that does not start at zero
_SPREAD = 50  # of values, from which their axis is logarithmic: bars from zero would flatten the others
RunPoint = tuple[str, str, float]  # label, what to call the run, value
Estimates = dict[str, stats.Estimate]  # by label
Span = tuple[float, float]  # of an axis


@dataclass(frozen=True)
class DotAxis:
    """What the horizontal axis shows.

    Attributes:
        title: with its unit.
        number: d3 format of a value.
        ends: how the headline speaks of the largest and the smallest.
        zero: whether the axis starts at zero whatever the values, as it must where lengths are compared.
        reported: the quantity that others may report of a group; empty for none.
    """

    title: str
    number: str
    ends: Ends
    zero: bool = False
    reported: str = ""


def dot_figure(
    points: list[RunPoint],
    estimates: Estimates,
    styles: Styles,
    axis: DotAxis,
    what: str,
    used: list[Row],
) -> Figure:
    """The figure of one number per run.

    Args:
        points: one per run.
        estimates: the median and interval by label, in the same unit.
        styles: by label, in the order of the rows, which is the study's: a value never decides it.
        axis: what the values are.
        what: the quantity in words, as the caption starts.
        used: rows of the runs that it shows.
    """
    estimates = {label: estimate.telling for label, estimate in estimates.items()}
    values = [value for _, _, value in points]
    interval_ends = [
        end for estimate in estimates.values() for end in (estimate.low, estimate.high) if end is not None
    ]
    marks = marks_of(used, axis.reported)
    values += [mark.value for own in marks.values() for mark in own]
    shown = [*values, *interval_ends]
    log = min(shown) > 0 and max(values) > _SPREAD * min(values)
    span = (min(shown) / 1.3, 1.3 * max(shown)) if log else axis_ends(shown, axis.zero or len(estimates) == 1)
    axis = replace(axis, number=fitting(axis.number, (estimate.median for estimate in estimates.values())))
    medians = "; ".join(
        f"{label} {number(estimate.median, axis.number)}" for label, estimate in estimates.items()
    )
    return Figure(
        spec=_plot(points, estimates, marks, styles, axis, span, log),
        caption=f"{what} {marks_caption(estimates)}{hollow_caption(marks)}",
        description=f"Dot plot of {axis.title} by group. Medians: {medians}.{hollow_description(marks)}",
        interval=methods(estimates),
        used=frozenset(row["run_id"] for row in used),
        finding=range_of(estimates, axis.ends, axis.number),
        table=estimates_table(estimates, list(styles), axis.title, axis.number),
    )


def run_name(row: Row) -> str:
    """What a mark's run is called: seed and repeat, as far as they say something, and the id."""
    words = [] if row["seed"] is None else [f"seed {row['seed']}"]
    words += [f"repeat {row['repeat']}"] if row["repeat"] > 1 else []
    return ", ".join([*words, row["run_id"]])


def marks_caption(estimates: Estimates) -> str:
    """What is drawn, no more: a group may have no interval."""
    drawn_ends = [estimate for estimate in estimates.values() if estimate.low is not None]
    ranges = [label for label, estimate in estimates.items() if estimate.is_range]
    lines = []
    if len(ranges) < len(drawn_ends):
        lines.append(f"intervals{' where there is one' if len(drawn_ends) < len(estimates) else ''}")
    for of in ("records", "runs"):
        if those := [label for label in ranges if (estimates[label].n > 1) == (of == "runs")]:
            where = f" in {names(those)}" if len(those) < len(estimates) else ""
            lines.append(f"ranges of the {of}{where}")
    return " ".join(
        ["Marks: runs. Bars: their medians.", *([f"Lines: {'; '.join(lines)}."] if lines else [])]
    )


def _plot(
    points: list[RunPoint],
    estimates: Estimates,
    marks: dict[str, tuple[ReportedMark, ...]],
    styles: Styles,
    axis: DotAxis,
    span: Span,
    log: bool,
) -> dict[str, Any]:
    import altair as alt

    styles = styles_for(estimates, styles)
    labels = list(styles)
    y, colour, group = y_of(labels), colours(styles), alt.Tooltip("label:N", title="group")

    def x(field: str) -> alt.X:
        if log:
            scale, ticks = alt.Scale(type="log", domain=list(span)), alt.Axis(grid=False, format=",~r")
            return alt.X(f"{field}:Q", title=f"{axis.title} (logarithmic)", scale=scale, axis=ticks)
        title = f"{axis.title} (from {span[0]:,.10g})" if span[0] else axis.title
        scale = alt.Scale(domain=list(span), nice=False, zero=False)
        return alt.X(f"{field}:Q", title=title, scale=scale, axis=alt.Axis(grid=False, tickCount=5))

    # The medians; if the axis starts at zero, as bars whose length is compared.
    rows = [
        {
            "label": label,
            "median": estimate.median,
            "low": estimate.low,
            "high": estimate.high,
            "n": estimate.n,
        }
        for label, estimate in estimates.items()
    ]
    layers = []
    if not span[0]:
        stem = inline([row | {"zero": 0} for row in rows]).mark_rule(strokeWidth=7, opacity=0.22)
        layers.append(stem.encode(x=x("zero"), x2="median:Q", y=y, color=colour))
    form = d3(axis.number)
    tips = [group, alt.Tooltip("median:Q", format=form), alt.Tooltip("n:Q", title="runs")]
    tick = inline(rows).mark_tick(thickness=2.5, size=16)
    layers.append(tick.encode(x=x("median"), y=y, color=colour, tooltip=tips))

    ends = [alt.Tooltip(f"{name}:Q", format=form) for name in ("median", "low", "high")]
    tips = [group, *ends, alt.Tooltip("n:Q", title="runs")]
    layers += interval_lines(rows, x("low"), y=y, color=colour, tooltip=tips)

    # The opacity of the fill, not of the mark: a PDF has an object of its own for each mark with one.
    values = [{"label": label, "run": run, "value": value} for label, run, value in points]
    mark = packed(values, "label").mark_point(filled=True, size=50, opacity=1, fillOpacity=0.8)
    tips = [group, alt.Tooltip("run:N"), alt.Tooltip("value:Q", title=axis.title, format=form)]
    layers.append(mark.encode(x=x("value"), y=y, color=colour, shape=shapes(styles), tooltip=tips))

    if marks:
        theirs = hollow(mark_rows(marks)).encode(x=x("value"), y=y, color=colour)
        layers.append(theirs.encode(tooltip=hollow_tips(axis.title)))
    layers += number_column(rows, y, "median", "median", axis.number)
    if span[0] and not log:
        place: Any = (alt.XValue, alt.YValue)
        sign = inline([{"what": "axis break"}]).mark_point(
            shape=_BREAK, size=45, stroke=INK, strokeWidth=1.5, opacity=0.8, aria=False
        )
        layers.append(sign.encode(x=place[0](0), y=place[1]("height")))
    return vega_lite(layers, rows_height(labels), TOP)


def rate_figure(rows: list[Row], styles: Styles, axis: DotAxis, value: stats.Quantity, what: str) -> Figure:
    """The figure of a quantity derived from each run's median step seconds.

    Args:
        rows: the answer to COMPLETED_RUNS.
        styles: by label.
        axis: what the quantity is.
        value: gives the quantity.
        what: the quantity in words, as the caption starts.
    """
    points = [(row["label"], run_name(row), value(row, row["step_seconds"])) for row in rows]
    return dot_figure(points, stats.estimates(rows, value), styles, axis, what, rows)
