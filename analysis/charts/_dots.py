"""One row per label: a dot for each run, the median and its interval. For one number per run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from analysis import stats
from analysis.charts._style import INK, chart, colours, config, drawn, right_edge

if TYPE_CHECKING:
    import altair as alt

    from analysis.charts import Row, Styles

MARKS = "Each mark is a run, the bar its group's median, the line the interval."  # of all that `plot` draws
ORDER = "Rows are in the order of the study, whatever their values."


def called(row: Row) -> str:
    """What a mark's run is called: seed and repeat, as far as they say something, and the id."""
    said = [] if row["seed"] is None else [f"seed {row['seed']}"]
    said += [f"repeat {row['repeat']}"] if row["repeat"] > 1 else []
    return ", ".join([*said, row["run_id"]])


@dataclass(frozen=True)
class Axis:
    """What the horizontal axis shows.

    Attributes:
        title: with its unit.
        number: d3 format of the value written beside each row.
        zero: whether the axis starts at zero, as it must where lengths are compared.
    """

    title: str
    number: str
    zero: bool = False


def plot(
    points: list[tuple[str, str, float]], found: dict[str, stats.Estimate], styles: Styles, axis: Axis
) -> dict[str, Any]:
    """Draw the rows as Vega-Lite.

    Args:
        points: (label, what to call the run, value), one per run.
        found: the median and interval by label, in the same unit.
        styles: by label, in the order of the rows, which is the study's: a value never decides it.
        axis: what the values are.
    """
    order = [label for label in styles if label in found]
    marks = [
        {"label": label, "zero": 0, "median": it.median, "low": it.low, "high": it.high, "n": it.n}
        for label, it in found.items()
    ]
    layers = [
        *_intervals(chart(marks), order, styles, axis),
        *_medians(chart(marks), order, axis),
        _runs(points, order, styles, axis),
    ]
    spec = drawn(layers, 30 * len(order))
    # Only the width follows the page: fitting the height too would squeeze the rows.
    fit = {"type": "fit-x", "contains": "padding"}
    return spec | {
        "config": config(),
        "autosize": fit,
        "padding": {"left": 2, "top": 22, "right": 2, "bottom": 4},
    }


def _y(order: list[str], axis: Axis) -> alt.Y:
    import altair as alt

    # A bar from zero already guides the eye.
    axis_y = alt.Axis(labelLimit=170, labelPadding=8, grid=not axis.zero)
    # The order is a domain: as a sort it would become an expression that contains the labels' text.
    return alt.Y("label:N", scale=alt.Scale(domain=order), sort=None, title=None, axis=axis_y)


def _x(field: str, axis: Axis) -> alt.X:
    import altair as alt

    scale = alt.Scale(zero=axis.zero, nice=True)
    return alt.X(f"{field}:Q", title=axis.title, scale=scale, axis=alt.Axis(grid=False, tickCount=5))


def _intervals(base: alt.Chart, order: list[str], styles: Styles, axis: Axis) -> list[alt.Chart]:
    import altair as alt

    tips = [
        alt.Tooltip("label:N", title="group"),
        alt.Tooltip("median:Q", format=axis.number),
        alt.Tooltip("low:Q", format=axis.number),
        alt.Tooltip("high:Q", format=axis.number),
        alt.Tooltip("n:Q", title="runs"),
    ]
    y, colour = _y(order, axis), colours(styles)
    stem = base.mark_rule(strokeWidth=7, opacity=0.22)
    stem = stem.encode(x=_x("zero", axis), x2="median:Q", y=y, color=colour)
    line = base.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=2.5, strokeCap="round")
    line = line.encode(x=_x("low", axis), x2="high:Q", y=y, color=colour, tooltip=tips)
    middle = base.mark_tick(thickness=2.5, size=16)
    middle = middle.encode(x=_x("median", axis), y=y, color=colour, tooltip=tips)
    return [*([stem] if axis.zero else []), line, middle]


def _medians(base: alt.Chart, order: list[str], axis: Axis) -> list[alt.Chart]:
    """The medians as a column of numbers to the right."""
    import altair as alt

    top: Any = alt.YValue
    place: dict[str, Any] = {"align": "right", "dx": 56, "color": INK}
    text = base.mark_text(**place).encode(
        x=right_edge(), y=_y(order, axis), text=alt.Text("median:Q", format=axis.number)
    )
    head = chart([{"text": "median"}]).mark_text(**place, opacity=0.7)
    return [text, head.encode(x=right_edge(), y=top(-12), text="text:N")]


def _runs(points: list[tuple[str, str, float]], order: list[str], styles: Styles, axis: Axis) -> alt.Chart:
    import altair as alt

    values = [{"label": label, "run": run, "value": value} for label, run, value in points]
    shapes = alt.Scale(domain=list(styles), range=[style.shape for style in styles.values()])
    tips = [
        alt.Tooltip("label:N", title="group"),
        alt.Tooltip("run:N"),
        alt.Tooltip("value:Q", title=axis.title, format=axis.number),
    ]
    mark: alt.Chart = chart(values).mark_point(filled=True, size=55, opacity=0.85)
    return mark.encode(
        x=_x("value", axis),
        y=_y(order, axis),
        color=colours(styles),
        shape=alt.Shape("label:N", scale=shapes, legend=None),
        tooltip=tips,
    )
