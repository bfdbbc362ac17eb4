"""Each group's rate over the declared baseline's, paired; a line at 1, and the margin around it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from analysis.charts import Chart, Figure, Row, Styles, Table
from analysis.charts._dots import ORDER
from analysis.charts._rows import TOP, column, height, y_of
from analysis.charts._style import INK, colours, drawn
from analysis.charts._style import chart as chart_of
from analysis.charts._values import groups, interval
from analysis.query.findings import MEASURED_RUNS
from analysis.stats.paired import RECORDS
from analysis.verdicts.groups import stated
from analysis.verdicts.rates import RateVerdict, rates

if TYPE_CHECKING:
    import altair as alt

OBSERVED = "observed"
_NUMBER = ".4f"
_MARKS: dict[str, dict[str, Any]] = {
    "withheld": {"shape": "cross", "size": 70, "filled": True},
    OBSERVED: {"size": 75, "filled": False, "strokeWidth": 2},
    "": {"size": 75, "filled": True},
}
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
            "differs from it only in these factors. "
            f"{_levels(found.compared)}{_band(margin, found.by_margin)} {ORDER}"
        ),
        description="Dot plot of the rate over the baseline's. "
        + "; ".join(f"{it.label} over {it.baseline} {_said(it)}" for it in found.compared)
        + ".",
        interval="; ".join(dict.fromkeys(f"{it.ratio.level}: {it.ratio.method}" for it in found.compared)),
        used=frozenset(run for it in found.compared for run in it.runs),
        finding=_finding(found.compared),
        table=_table(found.compared),
    )


def _named(baseline: dict[str, object]) -> str:
    """As a study writes it."""
    written = (str(value).lower() if isinstance(value, bool) else value for value in baseline.values())
    return ", ".join(f"{factor} = {value}" for factor, value in zip(baseline, written, strict=True))


def _levels(found: tuple[RateVerdict, ...]) -> str:
    """What each kind of mark is, and its interval where one is drawn."""
    observed, withheld = ([it for it in found if it.verdict.kind == kind] for kind in (OBSERVED, "withheld"))
    paired = [it for it in observed if it.ratio.level == RECORDS]
    verdicts = [it for it in found if it not in observed and it not in withheld]
    said = []
    if paired:
        steady = ": the interval says how steady the ratio was within these two runs, not what others give"
        how = steady if _drawn(paired) else ""
        said.append(f"Open marks are of one run each, paired by step{how}. They are observed, not findings.")
    if len(paired) < len(observed):
        said.append("Open marks without an interval are of medians where one of the two groups has one run.")
    if verdicts:
        over = "; the interval is over runs" if _drawn(verdicts) else ""
        said.append(
            "Filled marks are of several runs, paired by seed and repeat where enough of these are "
            f"shared{over}."
        )
    if withheld:
        said.append("Crosses are of runs that are not comparable, for reasons that the table names.")
    return " ".join(said)


def _drawn(found: Iterable[RateVerdict]) -> bool:
    return any(it.shown.low is not None for it in found)


def _band(margin: float | None, tested: bool) -> str:
    if not margin:
        return ""
    said = f" Shaded: the margin of {100 * margin:.3g} % that the study states."
    if not tested:
        return said
    return (
        f"{said} A verdict is two one-sided tests at 5 %, which is a 90 % interval checked against the "
        "margin: the 95 % interval drawn here is wider, and may cross an edge that the verdict's does not."
    )


def _said(it: RateVerdict) -> str:
    ends = "" if it.shown.low is None else f" ({it.shown.low:{_NUMBER}} to {it.shown.high:{_NUMBER}})"
    return f"{it.ratio.ratio:{_NUMBER}}{ends}, {it.verdict.kind}"


def _finding(found: tuple[RateVerdict, ...]) -> str:
    """The verdicts in a sentence; where there are none, what was observed."""
    over = {it.baseline for it in found}
    base = next(iter(over)) if len(over) == 1 else "their baselines"
    kinds: dict[str, list[str]] = {}
    for it in found:
        kinds.setdefault(_kind(it), []).append(it.label)
    said = [
        f"{groups(labels)} {_is(kind, len(labels) > 1)}" for kind, labels in kinds.items() if kind != OBSERVED
    ]
    if not (seen := [it for it in found if _kind(it) == OBSERVED]):
        return f"Compared with {base}: {'; '.join(said)}"
    low, high = (end(seen, key=lambda it: it.ratio.ratio) for end in (min, max))
    ends = [f"{it.ratio.ratio:.3f} ({it.label})" for it in dict.fromkeys((low, high))]
    seen_in = next(iter(runs)) if len(runs := {it.observed for it in seen}) == 1 else "in single runs"
    said.append(f"observed {seen_in}: {' to '.join(ends)} of the rate of {base}")
    return f"Compared with {base}: {'; '.join(said)}"


def _kind(it: RateVerdict) -> str:
    if it.verdict.kind != "different":
        return it.verdict.kind
    return "faster" if (it.verdict.difference or 0) > 0 else "slower"


def _is(kind: str, several: bool) -> str:
    said = {
        "equivalent": "equally fast within the margin",
        "inconclusive": "not decided",
        "withheld": "not comparable",
    }
    return f"{'are' if several else 'is'} {said.get(kind, kind)}"


def _table(found: tuple[RateVerdict, ...]) -> Table:
    columns = ("group", "baseline", "rate over the baseline's", "95 % interval", "n", "verdict")
    rows = [
        (
            it.label,
            it.baseline,
            format(it.ratio.ratio, _NUMBER),
            interval(it.shown.low, it.shown.high, _NUMBER),
            f"{it.ratio.n} {_pairs(it)}",
            it.verdict.kind,
        )
        for it in found
    ]
    return Table(columns, tuple(rows))


def _pairs(it: RateVerdict) -> str:
    if it.ratio.level == RECORDS:
        return "records of one run each"
    plural = "" if it.ratio.n == 1 else "s"
    return f"run{plural}, unpaired" if "unpaired" in it.ratio.method else f"pair{plural} of runs"


def _mark(it: RateVerdict) -> Row:
    return {
        "label": it.label,
        "over": it.baseline,
        "ratio": it.ratio.ratio,
        "low": it.shown.low,
        "high": it.shown.high,
        "verdict": it.verdict.kind,
        "pairs": f"{it.ratio.n} {_pairs(it)}",
    }


def _plot(found: tuple[RateVerdict, ...], margin: float | None, styles: Styles) -> dict[str, Any]:
    marks = [_mark(it) for it in found]
    styles = {
        label: style for label, style in styles.items() if any(mark["label"] == label for mark in marks)
    }
    order, domain = list(styles), _domain(found, margin)
    layers = [*_baseline(margin, domain), *_intervals(marks, domain, styles), *_points(marks, domain, styles)]
    return drawn([*layers, *column(marks, y_of(order), "ratio", "ratio", _NUMBER)], height(order), TOP)


def _domain(found: tuple[RateVerdict, ...], margin: float | None) -> list[float]:
    ends = [end for it in found for end in (it.shown.low, it.ratio.ratio, it.shown.high) if end is not None]
    reach = max(_LEAST, 1.5 * (margin or 0))
    low, high = min([*ends, 1 - reach]), max([*ends, 1 + reach])
    return [low - 0.03 * (high - low), high + 0.03 * (high - low)]


def _x(field: str, domain: list[float]) -> alt.X:
    import altair as alt

    scale, axis = alt.Scale(domain=domain, nice=False, zero=False), alt.Axis(grid=False, tickCount=5)
    return alt.X(f"{field}:Q", title="rate over the baseline's", scale=scale, axis=axis)


def _baseline(margin: float | None, domain: list[float]) -> list[alt.Chart]:
    rule = chart_of([{"one": 1}]).mark_rule(strokeWidth=1.5).encode(x=_x("one", domain))
    if not margin:
        return [rule]
    band = chart_of([{"from": 1 - margin, "to": 1 + margin}]).mark_rect(color=INK, opacity=0.08)
    return [band.encode(x=_x("from", domain), x2="to:Q"), rule]


def _intervals(marks: list[Row], domain: list[float], styles: Styles) -> list[alt.Chart]:
    """A layer only if there is an interval: an empty one is an image without a name to a screen reader."""
    known = [mark for mark in marks if mark["low"] is not None]
    if not known:
        return []
    line = chart_of(known).mark_rule(strokeWidth=2.5, strokeCap="round")
    x, y = _x("low", domain), y_of(list(styles))
    return [line.encode(x=x, x2="high:Q", y=y, color=colours(styles), tooltip=_tips(("low", "high")))]


def _points(marks: list[Row], domain: list[float], styles: Styles) -> list[alt.Chart]:
    """Filled where a verdict is over runs, open where single runs are observed, a cross where withheld."""
    found = []
    for kind, how in _MARKS.items():
        rows = [mark for mark in marks if (mark["verdict"] if mark["verdict"] in _MARKS else "") == kind]
        if rows:
            mark = chart_of(rows).mark_point(opacity=1, **how)
            x, y = _x("ratio", domain), y_of(list(styles))
            found.append(mark.encode(x=x, y=y, color=colours(styles), tooltip=_tips(())))
    return found


def _tips(ends: tuple[str, ...]) -> list[alt.Tooltip]:
    import altair as alt

    return [
        alt.Tooltip("label:N", title="group"),
        alt.Tooltip("over:N", title="over"),
        *(alt.Tooltip(f"{name}:Q", format=_NUMBER) for name in ("ratio", *ends)),
        alt.Tooltip("verdict:N"),
        alt.Tooltip("pairs:N", title="from"),
    ]


chart = Chart(
    title="Comparison",
    page="comparison",
    order=1,
    question="How much faster or slower than the baseline is each group?",
    sql=MEASURED_RUNS,
    build=_build,
    empty=(
        "No group is compared with a baseline: the study names none, such as "
        "`baseline: {attention: auto}`, or no run of it completed."
    ),
    absent="without a rate, or a completed counterpart in the baseline",
    tasks=("training", "inference"),
)
