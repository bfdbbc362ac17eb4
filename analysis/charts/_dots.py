"""One row per label: a mark for each run, the median and its interval. For one number per run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from analysis import stats
from analysis.charts import Figure, Row, Styles
from analysis.charts._axis import ends
from analysis.charts._rows import TOP, column, height, y_of
from analysis.charts._style import INK, chart, colours, drawn, packed, shapes
from analysis.charts._values import estimates_table, fitting, number, of_estimates, range_of
from analysis.wording import methods

if TYPE_CHECKING:
    import altair as alt

ORDER = "Rows follow the order of the study, whatever their values."
_BREAK = "M-0.9,1L-0.3,-1M0.3,1L0.9,-1"  # the sign of an axis that does not start at zero
Point = tuple[str, str, float]  # label, what to call the run, value
Found = dict[str, stats.Estimate]  # by label
Span = tuple[float, float]  # of an axis


@dataclass(frozen=True)
class Axis:
    """What the horizontal axis shows.

    Attributes:
        title: with its unit.
        number: d3 format of a value.
        zero: whether the axis starts at zero whatever the values, as it must where lengths are compared.
    """

    title: str
    number: str
    zero: bool = False


def figure(
    points: list[Point],
    found: Found,
    styles: Styles,
    axis: Axis,
    what: str,
    used: list[Row],
) -> Figure:
    """The figure of one number per run.

    Args:
        points: one per run.
        found: the median and interval by label, in the same unit.
        styles: by label, in the order of the rows, which is the study's: a value never decides it.
        axis: what the values are.
        what: the quantity in words, as the caption starts.
        used: rows of the runs that it shows.
    """
    span = _span(points, found, axis)
    shown = [*(value for _, _, value in points), *of_estimates(found.values())]
    axis = replace(axis, number=fitting(axis.number, shown))
    medians = "; ".join(f"{label} {number(it.median, axis.number)}" for label, it in found.items())
    start = f" The axis starts at {span[0]:,.10g}, not at zero." if span[0] else ""
    return Figure(
        spec=_plot(points, found, styles, axis, span),
        caption=f"{what} {marks(found)}{start} {ORDER}",
        description=f"Dot plot of {axis.title} by group. Medians: {medians}.",
        interval=methods(found),
        used=frozenset(row["run_id"] for row in used),
        finding=range_of(found, axis.title, axis.number),
        table=estimates_table(found, list(styles), axis.title, axis.number),
    )


def called(row: Row) -> str:
    """What a mark's run is called: seed and repeat, as far as they say something, and the id."""
    said = [] if row["seed"] is None else [f"seed {row['seed']}"]
    said += [f"repeat {row['repeat']}"] if row["repeat"] > 1 else []
    return ", ".join([*said, row["run_id"]])


def marks(found: Found) -> str:
    """What is drawn, no more: a group may have no interval."""
    without = [label for label, it in found.items() if it.low is None]
    if len(without) == len(found):
        return "Each mark is a run, each bar its group's median; no group has an interval."
    said = "Each mark is a run, each bar its group's median, each line the interval."
    return f"{said} Without a line: no interval." if without else said


def _span(points: list[Point], found: Found, axis: Axis) -> Span:
    drawn_ends = [end for it in found.values() for end in (it.low, it.high) if end is not None]
    return ends([*(value for _, _, value in points), *drawn_ends], axis.zero or len(found) == 1)


def _plot(
    points: list[Point],
    found: Found,
    styles: Styles,
    axis: Axis,
    span: Span,
) -> dict[str, Any]:
    styles = {label: style for label, style in styles.items() if label in found}
    rows = [
        {"label": label, "median": it.median, "low": it.low, "high": it.high, "n": it.n}
        for label, it in found.items()
    ]
    layers = [
        *_medians(rows, styles, axis, span),
        *_intervals([row for row in rows if row["low"] is not None], styles, axis, span),
        _runs(points, styles, axis, span),
        *column(rows, y_of(list(styles)), "median", "median", axis.number),
        *([_broken()] if span[0] else []),
    ]
    return drawn(layers, height(list(styles)), TOP)


def _x(field: str, axis: Axis, span: Span) -> alt.X:
    import altair as alt

    title = f"{axis.title} (from {span[0]:,.10g})" if span[0] else axis.title
    scale = alt.Scale(domain=list(span), nice=False, zero=False)
    return alt.X(f"{field}:Q", title=title, scale=scale, axis=alt.Axis(grid=False, tickCount=5))


def _medians(rows: list[Row], styles: Styles, axis: Axis, span: Span) -> list[alt.Chart]:
    """The medians; if the axis starts at zero, as bars whose length is compared."""
    import altair as alt

    tips = [
        alt.Tooltip("label:N", title="group"),
        alt.Tooltip("median:Q", format=axis.number),
        alt.Tooltip("n:Q", title="runs"),
    ]
    y, colour = y_of(list(styles)), colours(styles)
    tick = chart(rows).mark_tick(thickness=2.5, size=16)
    tick = tick.encode(x=_x("median", axis, span), y=y, color=colour, tooltip=tips)
    if span[0]:
        return [tick]
    stem = chart([row | {"zero": 0} for row in rows]).mark_rule(strokeWidth=7, opacity=0.22)
    return [stem.encode(x=_x("zero", axis, span), x2="median:Q", y=y, color=colour), tick]


def _intervals(rows: list[Row], styles: Styles, axis: Axis, span: Span) -> list[alt.Chart]:
    """A layer only if there is an interval: an empty one is an image without a name to a screen reader."""
    import altair as alt

    if not rows:
        return []
    tips = [
        alt.Tooltip("label:N", title="group"),
        *(alt.Tooltip(f"{name}:Q", format=axis.number) for name in ("median", "low", "high")),
        alt.Tooltip("n:Q", title="runs"),
    ]
    line = chart(rows).mark_rule(strokeWidth=2.5, strokeCap="round")
    x, y = _x("low", axis, span), y_of(list(styles))
    return [line.encode(x=x, x2="high:Q", y=y, color=colours(styles), tooltip=tips)]


def _runs(points: list[Point], styles: Styles, axis: Axis, span: Span) -> alt.Chart:
    import altair as alt

    values = [{"label": label, "run": run, "value": value} for label, run, value in points]
    tips = [
        alt.Tooltip("label:N", title="group"),
        alt.Tooltip("run:N"),
        alt.Tooltip("value:Q", title=axis.title, format=axis.number),
    ]
    # The opacity of the fill, not of the mark: a PDF has an object of its own for each mark with one.
    mark: alt.Chart = packed(values, "label").mark_point(filled=True, size=50, opacity=1, fillOpacity=0.8)
    x, y = _x("value", axis, span), y_of(list(styles))
    return mark.encode(x=x, y=y, color=colours(styles), shape=shapes(styles), tooltip=tips)


def _broken() -> alt.Chart:
    import altair as alt

    place: Any = (alt.XValue, alt.YValue)
    mark: alt.Chart = chart([{"what": "axis break"}]).mark_point(
        shape=_BREAK, size=45, stroke=INK, strokeWidth=1.5, opacity=0.8, aria=False
    )
    return mark.encode(x=place[0](0), y=place[1]("height"))
