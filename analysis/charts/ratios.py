"""Each group's rate over the declared baseline's, paired; a line at 1, and the margin around it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from analysis.charts import Chart, Figure, Row, Styles, Table
from analysis.charts._rows import TOP, interval_lines, number_column, rows_height, y_of
from analysis.charts._style import INK, colours, inline, styles_for, vega_lite
from analysis.charts._values import interval, names, shortened
from analysis.charts.scaling import STEADY
from analysis.query.statements import MEASURED_RUNS
from analysis.stats.paired import RECORDS
from analysis.verdicts.groups import common_margin
from analysis.verdicts.rates import RateVerdict, rates

if TYPE_CHECKING:
    import altair as alt

_SINGLE = "single runs"
_NUMBER = ".4f"
# Filled where a verdict is over runs, open where it is of single runs, a cross where withheld.
_MARKS: dict[str, dict[str, Any]] = {
    "withheld": {"shape": "cross", "size": 70, "filled": True},
    _SINGLE: {"size": 75, "filled": False, "strokeWidth": 2},
    "": {"size": 75, "filled": True},
}
_LEAST = 0.01  # how far the axis reaches at least on either side of 1, so that rounding looks small


def _build(rows: list[Row], styles: Styles) -> Figure | None:
    speeds = rates(rows)
    if not speeds.compared:
        return None
    margin = common_margin(rows, "tokens_per_second")
    descriptions = []
    for comparison in speeds.compared:
        ends = "" if comparison.shown.low is None else f" ({interval(comparison.shown, _NUMBER)})"
        descriptions.append(
            f"{comparison.label} over {comparison.baseline} "
            f"{comparison.ratio.ratio:{_NUMBER}}{ends}, {comparison.verdict.kind}"
        )
    cells = [
        (
            comparison.label,
            comparison.baseline,
            format(comparison.ratio.ratio, _NUMBER),
            interval(comparison.shown, _NUMBER),
            f"{comparison.ratio.n} {_pairs(comparison)}",
            comparison.verdict.kind,
        )
        for comparison in speeds.compared
    ]
    return Figure(
        spec=_plot(speeds.compared, margin, styles),
        caption=_caption(speeds.compared, speeds.baseline or {}, margin, speeds.by_margin),
        description=f"Dot plot of the rate over the baseline's. {'; '.join(descriptions)}.",
        interval="; ".join(
            dict.fromkeys(
                f"{comparison.ratio.level}: {comparison.ratio.method}" for comparison in speeds.compared
            )
        ),
        used=frozenset(run for comparison in speeds.compared for run in comparison.runs),
        finding=_finding(speeds.compared),
        table=Table(
            ("group", "baseline", "rate over the baseline's", "95 % interval", "n", "verdict"), tuple(cells)
        ),
    )


def _caption(
    comparisons: tuple[RateVerdict, ...], baseline: dict[str, object], margin: float | None, tested: bool
) -> str:
    """What is compared, what each kind of mark is, its interval where one is drawn, and the margin.

    Args:
        tested: whether the verdicts are tests against the margin.
    """
    # As a study writes it.
    factors = ", ".join(
        f"{factor} = {str(value).lower() if isinstance(value, bool) else value}"
        for factor, value in baseline.items()
    )
    sentences = [f"Baseline: {factors}, all else equal. Above 1 is faster."]

    single, withheld, verdicts = (
        [comparison for comparison in comparisons if _look(comparison) == look]
        for look in (_SINGLE, "withheld", "")
    )
    paired = [comparison for comparison in single if comparison.ratio.level == RECORDS]
    if paired:
        ranges = [comparison.label for comparison in paired if comparison.ratio.is_range]
        how = f"; lines: {STEADY}{f'; of {names(ranges)}, ranges' if ranges else ''}"
        lines = how if _any_interval(paired) else ""
        sentences.append(f"Open marks: the medians of one run each{lines}.")
    if len(paired) < len(single):
        sentences.append("Open marks without a line: medians, where one of the two groups has one run.")
    if apart := [one.label for one in single if one.single and one.single.on_other_gpus]:
        sentences.append(
            f"On another GPU than its baseline: {names(apart)}; such a ratio includes the difference of the "
            "GPUs."
        )
    if verdicts:
        over = "; lines: intervals over runs" if _any_interval(verdicts) else ""
        sentences.append(f"Filled marks: several runs, paired by seed and repeat where shared{over}.")
    if withheld:
        sentences.append("Crosses: runs that are not comparable; the table says why.")
    if any(comparison.shown.low is not None and _ends(comparison)[0] is None for comparison in comparisons):
        sentences.append("An interval wider than its ratio is not drawn.")

    if margin:
        sentences.append(f"Shaded: the stated margin of {100 * margin:.3g} %.")
    if margin and tested:
        sentences.append(
            "Verdicts hold a 90 % interval against it; the lines here are of 95 %, and may cross an edge "
            "that theirs do not."
        )
    return " ".join(sentences)


def _look(comparison: RateVerdict) -> str:
    """Which of the marks it is drawn as."""
    return "withheld" if comparison.verdict.kind == "withheld" else _SINGLE if comparison.single else ""


def _any_interval(comparisons: Iterable[RateVerdict]) -> bool:
    return any(_ends(comparison)[0] is not None for comparison in comparisons)


def _ends(comparison: RateVerdict) -> tuple[float, float] | tuple[None, None]:
    """The ends of its interval, unless that is wider than the ratio: it says nothing."""
    low, high = comparison.shown.low, comparison.shown.high
    if low is None or high is None or high - low > comparison.ratio.ratio:
        return None, None
    return low, high


def _finding(comparisons: tuple[RateVerdict, ...]) -> str:
    """By how much groups are faster or slower than the baseline, by verdict; single runs, above or below."""
    short = shortened(
        {label for comparison in comparisons for label in (comparison.label, comparison.baseline)}
    )
    baselines = {short[comparison.baseline] for comparison in comparisons}
    base = next(iter(baselines)) if len(baselines) == 1 else "their baselines"
    by_kind: dict[str, list[RateVerdict]] = {}
    for comparison in comparisons:
        kind: str = comparison.verdict.kind
        if kind in ("different", "observed"):
            words_for = ("above", "below") if kind == "observed" else ("faster", "slower")
            way = words_for[comparison.ratio.ratio <= 1]
            kind = f"{way}, {comparison.observed}" if kind == "observed" else way
        by_kind.setdefault(kind, []).append(comparison)
    words = {
        "equivalent": "equal within the margin",
        "inconclusive": "not decided",
        "withheld": "not comparable",
    }
    seen_in = {kind.partition(", ")[2] for kind in by_kind}
    observed_all = seen_in.pop() if len(seen_in) == 1 else ""
    clauses = []
    for kind, alike in by_kind.items():
        labels = names([short[comparison.label] for comparison in alike], 3)
        if kind in words:
            clauses.append(f"{words[kind]}: {labels}")
            continue
        way, _, observed = kind.partition(", ")
        sizes = sorted(100 * abs(comparison.ratio.ratio - 1) for comparison in alike)
        digits = 1 if sizes[0] < 10 else 0
        ends = dict.fromkeys(f"{size:.{digits}f}" for size in (sizes[0], sizes[-1]))
        seen = f" ({observed})" if observed and not observed_all else ""
        clauses.append(f"{' to '.join(ends)} % {way}: {labels}{seen}")
    once = f" ({observed_all})" if observed_all else ""
    return f"Against {base}: {'; '.join(clauses)}{once}"


def _pairs(comparison: RateVerdict) -> str:
    if comparison.ratio.level == RECORDS:
        return "run each"
    plural = "" if comparison.ratio.n == 1 else "s"
    return f"run{plural}, unpaired" if "unpaired" in comparison.ratio.method else f"pair{plural} of runs"


def _plot(comparisons: tuple[RateVerdict, ...], margin: float | None, styles: Styles) -> dict[str, Any]:
    import altair as alt

    marks: list[Row] = [
        {
            "label": comparison.label,
            "over": comparison.baseline,
            "ratio": comparison.ratio.ratio,
            "low": _ends(comparison)[0],
            "high": _ends(comparison)[1],
            "verdict": comparison.verdict.kind,
            "look": _look(comparison),
            "pairs": f"{comparison.ratio.n} {_pairs(comparison)}",
        }
        for comparison in comparisons
    ]
    styles = styles_for({mark["label"] for mark in marks}, styles)
    labels = list(styles)
    y, colour = y_of(labels), colours(styles)

    # The axis has 1 in it and the margin, with room around them.
    reach = max(_LEAST, 1.5 * (margin or 0))
    ends = [end for mark in marks for end in (mark["low"], mark["ratio"], mark["high"]) if end is not None]
    low, high = min([*ends, 1 - reach]), max([*ends, 1 + reach])
    domain = [low - 0.03 * (high - low), high + 0.03 * (high - low)]

    def x(field: str) -> alt.X:
        scale, axis = alt.Scale(domain=domain, nice=False, zero=False), alt.Axis(grid=False, tickCount=5)
        return alt.X(f"{field}:Q", title="rate over the baseline's", scale=scale, axis=axis)

    def tips(*columns: str) -> list[alt.Tooltip]:
        return [
            alt.Tooltip("label:N", title="group"),
            alt.Tooltip("over:N", title="over"),
            *(alt.Tooltip(f"{name}:Q", format=_NUMBER) for name in ("ratio", *columns)),
            alt.Tooltip("verdict:N"),
            alt.Tooltip("pairs:N", title="from"),
        ]

    layers = []
    if margin:
        band = inline([{"from": 1 - margin, "to": 1 + margin}]).mark_rect(color=INK, opacity=0.08)
        layers.append(band.encode(x=x("from"), x2="to:Q"))
    layers.append(inline([{"one": 1}]).mark_rule(strokeWidth=1.5).encode(x=x("one")))
    layers += interval_lines(marks, x("low"), y=y, color=colour, tooltip=tips("low", "high"))
    for look, how in _MARKS.items():
        if rows := [mark for mark in marks if mark["look"] == look]:
            point = inline(rows).mark_point(opacity=1, **how)
            layers.append(point.encode(x=x("ratio"), y=y, color=colour, tooltip=tips()))
    layers += number_column(marks, y, "ratio", "ratio", _NUMBER)
    return vega_lite(layers, rows_height(labels), TOP)


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
