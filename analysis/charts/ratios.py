"""Each group's rate over the declared baseline's, paired; a line at 1, and the margin around it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from analysis.charts import Chart, Figure, Row, Styles
from analysis.charts._dots import ORDER
from analysis.charts._style import INK, colours, config, drawn, right_edge
from analysis.charts._style import chart as chart_of
from analysis.findings.groups import stated
from analysis.findings.rates import Compared, rates
from analysis.query.findings import MEASURED_RUNS
from analysis.stats.paired import RECORDS

if TYPE_CHECKING:
    import altair as alt

_NUMBER = ".4f"
_LEAST = 0.01  # how far the axis reaches at least on either side of 1, so that rounding looks small


def _build(rows: list[Row], styles: Styles) -> Figure | None:
    found = rates(rows)
    if not found.compared:
        return None
    margin = stated(rows, "margins", "tokens_per_second")
    return Figure(
        spec=_plot(found.compared, margin, styles),
        caption=(
            "Tokens per second divided by those of the baseline, "
            f"{_named(found.baseline or {})}: above 1 is faster. Each group is compared with the one that "
            "differs from it by these factors alone. "
            f"{_levels(found.compared)}{_band(margin)} {ORDER}"
        ),
        description="Dot plot of the rate over the baseline's. "
        + "; ".join(f"{it.label} over {it.baseline} {_said(it)}" for it in found.compared)
        + ".",
        interval="; ".join(dict.fromkeys(f"{it.ratio.level}: {it.ratio.method}" for it in found.compared)),
        used=frozenset(run for it in found.compared for run in it.runs),
    )


def _named(baseline: dict[str, object]) -> str:
    return ", ".join(f"{factor} = {value}" for factor, value in baseline.items())


def _levels(found: tuple[Compared, ...]) -> str:
    said = []
    if any(it.ratio.level == RECORDS for it in found):
        said.append(
            "Open marks are of one run each, paired by step: the interval says how steady the ratio was "
            "within these two runs, not what other runs would give. They are observed, not findings."
        )
    if any(it.ratio.level != RECORDS for it in found):
        said.append("Filled marks are of several runs, paired by seed and repeat; the interval is over runs.")
    if any(it.verdict.kind == "withheld" for it in found):
        said.append("Crosses are of runs that are not comparable, for reasons that the table names.")
    return " ".join(said)


def _band(margin: float | None) -> str:
    return f" Shaded: the margin of {100 * margin:.3g} % that the study states." if margin else ""


def _said(it: Compared) -> str:
    ends = "" if it.shown.low is None else f" ({it.shown.low:.4g} to {it.shown.high:.4g})"
    return f"{it.ratio.ratio:.4g}{ends}, {it.verdict.kind}"


def _mark(it: Compared) -> Row:
    return {
        "label": it.label,
        "over": it.baseline,
        "ratio": it.ratio.ratio,
        "low": it.shown.low,
        "high": it.shown.high,
        "verdict": it.verdict.kind,
        "pairs": f"{it.ratio.n} {'records' if it.ratio.level == RECORDS else 'pairs of runs'}",
    }


def _plot(found: tuple[Compared, ...], margin: float | None, styles: Styles) -> dict[str, Any]:

    marks = [_mark(it) for it in found]
    order = [label for label in styles if any(mark["label"] == label for mark in marks)]
    domain = _domain(found, margin)
    layers = [*_baseline(margin, domain), *_intervals(marks, order, domain, styles), *_column(marks, order)]
    spec = drawn(layers, 30 * len(order))
    fit = {"type": "fit-x", "contains": "padding"}
    padding = {"left": 2, "top": 22, "right": 2, "bottom": 4}
    return spec | {"config": config(), "autosize": fit, "padding": padding}


def _domain(found: tuple[Compared, ...], margin: float | None) -> list[float]:
    ends = [end for it in found for end in (it.shown.low, it.ratio.ratio, it.shown.high) if end is not None]
    reach = max(_LEAST, 1.5 * (margin or 0))
    low, high = min([*ends, 1 - reach]), max([*ends, 1 + reach])
    return [low - 0.03 * (high - low), high + 0.03 * (high - low)]


def _x(field: str, domain: list[float]) -> alt.X:
    import altair as alt

    scale, axis = alt.Scale(domain=domain, nice=False, zero=False), alt.Axis(grid=False, tickCount=5)
    return alt.X(f"{field}:Q", title="rate over the baseline's", scale=scale, axis=axis)


def _y(order: list[str]) -> alt.Y:
    import altair as alt

    axis = alt.Axis(labelLimit=170, labelPadding=8, grid=True)
    return alt.Y("label:N", scale=alt.Scale(domain=order), sort=None, title=None, axis=axis)


def _baseline(margin: float | None, domain: list[float]) -> list[alt.Chart]:
    rule = chart_of([{"one": 1}]).mark_rule(strokeWidth=1.5).encode(x=_x("one", domain))
    if not margin:
        return [rule]
    band = chart_of([{"from": 1 - margin, "to": 1 + margin}]).mark_rect(color=INK, opacity=0.08)
    return [band.encode(x=_x("from", domain), x2="to:Q"), rule]


def _intervals(marks: list[Row], order: list[str], domain: list[float], styles: Styles) -> list[alt.Chart]:
    import altair as alt

    tips = [
        alt.Tooltip("label:N", title="group"),
        alt.Tooltip("over:N", title="over"),
        *(alt.Tooltip(f"{name}:Q", format=_NUMBER) for name in ("ratio", "low", "high")),
        alt.Tooltip("verdict:N"),
        alt.Tooltip("pairs:N", title="from"),
    ]
    base = chart_of(marks).encode(y=_y(order), color=colours(styles), tooltip=tips)
    line = base.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=2.5, strokeCap="round")
    shapes: dict[str, dict[str, Any]] = {
        "datum.verdict == 'withheld'": {"shape": "cross", "size": 70},
        "datum.verdict == 'observed'": {"size": 75, "filled": False, "strokeWidth": 2},
        "datum.verdict != 'withheld' && datum.verdict != 'observed'": {"size": 75, "filled": True},
    }
    points = [
        base.transform_filter(which).mark_point(opacity=1, **how).encode(x=_x("ratio", domain))
        for which, how in shapes.items()
    ]
    return [line.encode(x=_x("low", domain), x2="high:Q"), *points]


def _column(marks: list[Row], order: list[str]) -> list[alt.Chart]:
    """The ratios as a column of numbers to the right."""
    import altair as alt

    top: Any = alt.YValue
    place: dict[str, Any] = {"align": "right", "dx": 56, "color": INK}
    text = chart_of(marks).mark_text(**place)
    text = text.encode(x=right_edge(), y=_y(order), text=alt.Text("ratio:Q", format=_NUMBER))
    head = chart_of([{"text": "ratio"}]).mark_text(**place, opacity=0.7)
    return [text, head.encode(x=right_edge(), y=top(-12), text="text:N")]


chart = Chart(
    title="Comparison",
    page="comparison",
    order=5,
    question="How much faster or slower than the baseline is each group?",
    sql=MEASURED_RUNS,
    build=_build,
    empty=(
        "No group is compared with a baseline. Name one in the study, such as `baseline: {attention: auto}`: "
        "factors with the values that the groups are to be compared with."
    ),
)
