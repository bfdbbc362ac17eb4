"""Each group's rate over the declared baseline's, paired; a line at 1, and the margin around it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from analysis.charts import Chart, Figure, Row, Styles, Table
from analysis.charts._rows import ORDER, TOP, number_column, rows_height, y_of
from analysis.charts._style import INK, colours, drawn, inline
from analysis.charts._values import groups, interval
from analysis.query.statements import MEASURED_RUNS
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
    speeds = rates(rows)
    if not speeds.compared:
        return None
    margin = stated(rows, "margins", "tokens_per_second")
    return Figure(
        spec=_plot(speeds.compared, margin, styles),
        caption=(
            "Tokens per second divided by those of the baseline, "
            f"{_named(speeds.baseline or {})}: above 1 is faster. Each group is compared with the one that "
            "differs from it only in these factors. "
            f"{_levels(speeds.compared)}{_band(margin, speeds.by_margin)} {ORDER}"
        ),
        description="Dot plot of the rate over the baseline's. "
        + "; ".join(
            f"{comparison.label} over {comparison.baseline} {_said(comparison)}"
            for comparison in speeds.compared
        )
        + ".",
        interval="; ".join(
            dict.fromkeys(
                f"{comparison.ratio.level}: {comparison.ratio.method}" for comparison in speeds.compared
            )
        ),
        used=frozenset(run for comparison in speeds.compared for run in comparison.runs),
        finding=_finding(speeds.compared),
        table=_table(speeds.compared),
    )


def _named(baseline: dict[str, object]) -> str:
    """The baseline as a study writes it."""
    written = (str(value).lower() if isinstance(value, bool) else value for value in baseline.values())
    return ", ".join(f"{factor} = {value}" for factor, value in zip(baseline, written, strict=True))


def _levels(comparisons: tuple[RateVerdict, ...]) -> str:
    """What each kind of mark is, and its interval where one is drawn."""
    observed, withheld = (
        [comparison for comparison in comparisons if comparison.verdict.kind == kind]
        for kind in (OBSERVED, "withheld")
    )
    paired = [comparison for comparison in observed if comparison.ratio.level == RECORDS]
    verdicts = [
        comparison for comparison in comparisons if comparison not in observed and comparison not in withheld
    ]
    sentences = []
    if paired:
        steady = ": the interval says how steady the ratio was within these two runs, not what others give"
        how = steady if _drawn(paired) else ""
        sentences.append(
            f"Open marks are of one run each, paired by step{how}. They are observed, not findings."
        )
    if len(paired) < len(observed):
        sentences.append(
            "Open marks without an interval are of medians where one of the two groups has one run."
        )
    if verdicts:
        over = "; the interval is over runs" if _drawn(verdicts) else ""
        sentences.append(
            "Filled marks are of several runs, paired by seed and repeat where enough of these are "
            f"shared{over}."
        )
    if withheld:
        sentences.append("Crosses are of runs that are not comparable, for reasons that the table names.")
    return " ".join(sentences)


def _drawn(comparisons: Iterable[RateVerdict]) -> bool:
    return any(comparison.shown.low is not None for comparison in comparisons)


def _band(margin: float | None, tested: bool) -> str:
    if not margin:
        return ""
    sentence = f" Shaded: the margin of {100 * margin:.3g} % that the study states."
    if not tested:
        return sentence
    return (
        f"{sentence} A verdict is two one-sided tests at 5 %, which is a 90 % interval checked against the "
        "margin: the 95 % interval drawn here is wider, and may cross an edge that the verdict's does not."
    )


def _said(comparison: RateVerdict) -> str:
    ends = (
        ""
        if comparison.shown.low is None
        else f" ({comparison.shown.low:{_NUMBER}} to {comparison.shown.high:{_NUMBER}})"
    )
    return f"{comparison.ratio.ratio:{_NUMBER}}{ends}, {comparison.verdict.kind}"


def _finding(comparisons: tuple[RateVerdict, ...]) -> str:
    """The verdicts in a sentence; where there are none, what was observed."""
    over = {comparison.baseline for comparison in comparisons}
    base = next(iter(over)) if len(over) == 1 else "their baselines"
    kinds: dict[str, list[str]] = {}
    for comparison in comparisons:
        kinds.setdefault(_kind(comparison), []).append(comparison.label)
    clauses = [
        f"{groups(labels)} {_is(kind, len(labels) > 1)}" for kind, labels in kinds.items() if kind != OBSERVED
    ]
    if not (seen := [comparison for comparison in comparisons if _kind(comparison) == OBSERVED]):
        return f"RateVerdict with {base}: {'; '.join(clauses)}"
    low, high = (end(seen, key=lambda comparison: comparison.ratio.ratio) for end in (min, max))
    ends = [f"{comparison.ratio.ratio:.3f} ({comparison.label})" for comparison in dict.fromkeys((low, high))]
    seen_in = (
        next(iter(runs))
        if len(runs := {comparison.observed for comparison in seen}) == 1
        else "in single runs"
    )
    clauses.append(f"observed {seen_in}: {' to '.join(ends)} of the rate of {base}")
    return f"RateVerdict with {base}: {'; '.join(clauses)}"


def _kind(comparison: RateVerdict) -> str:
    if comparison.verdict.kind != "different":
        return comparison.verdict.kind
    return "faster" if (comparison.verdict.difference or 0) > 0 else "slower"


def _is(kind: str, several: bool) -> str:
    words_by_kind = {
        "equivalent": "equally fast within the margin",
        "inconclusive": "not decided",
        "withheld": "not comparable",
    }
    return f"{'are' if several else 'is'} {words_by_kind.get(kind, kind)}"


def _table(comparisons: tuple[RateVerdict, ...]) -> Table:
    columns = ("group", "baseline", "rate over the baseline's", "95 % interval", "n", "verdict")
    rows = [
        (
            comparison.label,
            comparison.baseline,
            format(comparison.ratio.ratio, _NUMBER),
            interval(comparison.shown.low, comparison.shown.high, _NUMBER),
            f"{comparison.ratio.n} {_pairs(comparison)}",
            comparison.verdict.kind,
        )
        for comparison in comparisons
    ]
    return Table(columns, tuple(rows))


def _pairs(comparison: RateVerdict) -> str:
    if comparison.ratio.level == RECORDS:
        return "records of one run each"
    plural = "" if comparison.ratio.n == 1 else "s"
    return f"run{plural}, unpaired" if "unpaired" in comparison.ratio.method else f"pair{plural} of runs"


def _mark(comparison: RateVerdict) -> Row:
    return {
        "label": comparison.label,
        "over": comparison.baseline,
        "ratio": comparison.ratio.ratio,
        "low": comparison.shown.low,
        "high": comparison.shown.high,
        "verdict": comparison.verdict.kind,
        "pairs": f"{comparison.ratio.n} {_pairs(comparison)}",
    }


def _plot(comparisons: tuple[RateVerdict, ...], margin: float | None, styles: Styles) -> dict[str, Any]:
    marks = [_mark(comparison) for comparison in comparisons]
    styles = {
        label: style for label, style in styles.items() if any(mark["label"] == label for mark in marks)
    }
    order, domain = list(styles), _domain(comparisons, margin)
    layers = [*_baseline(margin, domain), *_intervals(marks, domain, styles), *_points(marks, domain, styles)]
    return drawn(
        [*layers, *number_column(marks, y_of(order), "ratio", "ratio", _NUMBER)], rows_height(order), TOP
    )


def _domain(comparisons: tuple[RateVerdict, ...], margin: float | None) -> list[float]:
    ends = [
        end
        for comparison in comparisons
        for end in (comparison.shown.low, comparison.ratio.ratio, comparison.shown.high)
        if end is not None
    ]
    reach = max(_LEAST, 1.5 * (margin or 0))
    low, high = min([*ends, 1 - reach]), max([*ends, 1 + reach])
    return [low - 0.03 * (high - low), high + 0.03 * (high - low)]


def _x(field: str, domain: list[float]) -> alt.X:
    import altair as alt

    scale, axis = alt.Scale(domain=domain, nice=False, zero=False), alt.Axis(grid=False, tickCount=5)
    return alt.X(f"{field}:Q", title="rate over the baseline's", scale=scale, axis=axis)


def _baseline(margin: float | None, domain: list[float]) -> list[alt.Chart]:
    rule = inline([{"one": 1}]).mark_rule(strokeWidth=1.5).encode(x=_x("one", domain))
    if not margin:
        return [rule]
    band = inline([{"from": 1 - margin, "to": 1 + margin}]).mark_rect(color=INK, opacity=0.08)
    return [band.encode(x=_x("from", domain), x2="to:Q"), rule]


def _intervals(marks: list[Row], domain: list[float], styles: Styles) -> list[alt.Chart]:
    """A layer only if there is an interval: an empty one is an image without a name to a screen reader."""
    with_interval = [mark for mark in marks if mark["low"] is not None]
    if not with_interval:
        return []
    line = inline(with_interval).mark_rule(strokeWidth=2.5, strokeCap="round")
    x, y = _x("low", domain), y_of(list(styles))
    return [line.encode(x=x, x2="high:Q", y=y, color=colours(styles), tooltip=_tips(("low", "high")))]


def _points(marks: list[Row], domain: list[float], styles: Styles) -> list[alt.Chart]:
    """Filled where a verdict is over runs, open where single runs are observed, a cross where withheld."""
    layers = []
    for kind, how in _MARKS.items():
        rows = [mark for mark in marks if (mark["verdict"] if mark["verdict"] in _MARKS else "") == kind]
        if rows:
            mark = inline(rows).mark_point(opacity=1, **how)
            x, y = _x("ratio", domain), y_of(list(styles))
            layers.append(mark.encode(x=x, y=y, color=colours(styles), tooltip=_tips(())))
    return layers


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
