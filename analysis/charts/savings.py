"""Percent of time and of memory that each cell of a grid saves against its own baseline, paired."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from analysis.charts import Chart, Figure, Row, Styles, Table
from analysis.charts._rows import TOP, number_column, rows_height, y_of
from analysis.charts._style import colours, drawn, inline, round_ends, styles_for
from analysis.charts._values import interval, names, number, shortened
from analysis.query.statements import MEASURED_RUNS
from analysis.stats import Estimate
from analysis.stats.estimate import RANGE, median
from analysis.verdicts.groups import Group, compared, declared, differing, groups_of
from analysis.verdicts.guard import breaking
from analysis.verdicts.rates import ratio_of

if TYPE_CHECKING:
    import altair as alt

_FORM = ".1f"


class Saving(NamedTuple):
    """Percent that a group saves of what its baseline takes; negative where it takes more."""

    label: str
    baseline: str
    percent: Estimate
    runs: frozenset[str]


def _time(group: Group, base: Group) -> Saving | None:
    """Of the seconds per token. The rate's ratio r has 1 / r of them."""
    if breaking(differing(group, base), "speed"):
        return None
    ratio = ratio_of(group, base)
    method = f"{ratio.level}: {ratio.method}, of which 1 - 1 / ratio"
    speed = Estimate(ratio.ratio, ratio.low, ratio.high, ratio.n, method)
    return _saving(group, base, speed.map(lambda ratio: 100 * (1 - 1 / ratio)))


def _memory(group: Group, base: Group) -> Saving | None:
    """Of the peak: the median over pairs of runs."""
    sizes = [
        (run["peak_memory_bytes"], base.pairs[key]["peak_memory_bytes"])
        for key, run in group.pairs.items()
        if key in base.pairs
    ]
    percent = [100 * (1 - own / others) for own, others in sizes if own and others]
    if not percent:
        return None
    return _saving(group, base, Estimate(median(percent), None, None, len(percent), "none"))


def _saving(group: Group, base: Group, percent: Estimate) -> Saving:
    runs = frozenset(run["run_id"] for run in (*group.runs, *base.runs))
    return Saving(group.label, base.label, percent, runs)


def _figure(
    rows: list[Row], styles: Styles, saved: Callable[[Group, Group], Saving | None], what: str, verb: str
) -> Figure | None:
    pairs = compared(groups_of(rows), declared(rows))
    savings = [saving for group, base in pairs if (saving := saved(group, base))]
    if not savings:
        return None
    short = shortened({saving.label for saving in savings})
    ordered = sorted(savings, key=lambda saving: saving.percent.median)
    ends = list(dict.fromkeys((ordered[0].label, ordered[-1].label)))
    by_label = {saving.label: saving for saving in savings}
    told = " to ".join(
        f"{number(by_label[label].percent.median, _FORM)} % ({names([short[label]])})" for label in ends
    )
    cells = [
        (
            saving.label,
            saving.baseline,
            number(saving.percent.median, _FORM),
            interval(saving.percent, _FORM),
            str(saving.percent.n),
        )
        for saving in savings
    ]
    ranges = [short[saving.label] for saving in savings if RANGE in saving.percent.method]
    return Figure(
        spec=_plot(savings, styles, f"percent of {verb} saved"),
        caption=f"{what} Below zero, the group takes more. Runs are paired by seed and repeat where shared."
        + (f" Lines of {names(ranges)}: ranges of the records." if ranges else ""),
        description=f"Dot plot of the percent of {verb} saved, by group: {told}.",
        interval="; ".join(dict.fromkeys(saving.percent.method for saving in savings)),
        used=frozenset(run for saving in savings for run in saving.runs),
        finding=f"{verb.capitalize()} saved against the baseline: {told}",
        table=Table(("group", "baseline", f"{verb} saved, %", "95 % interval", "n"), tuple(cells)),
    )


def _plot(savings: list[Saving], styles: Styles, title: str) -> dict[str, Any]:
    import altair as alt

    marks: list[Row] = [
        {
            "label": saving.label,
            "over": saving.baseline,
            "percent": saving.percent.median,
            "low": saving.percent.low,
            "high": saving.percent.high,
            "zero": 0,
        }
        for saving in savings
    ]
    styles = styles_for({saving.label for saving in savings}, styles)
    y, colour = y_of(list(styles)), colours(styles)
    ends = [end for mark in marks for end in (mark["low"], mark["percent"], mark["high"]) if end is not None]
    domain = list(round_ends(min([*ends, 0]), max([*ends, 0])))

    def x(field: str) -> alt.X:
        scale, axis = alt.Scale(domain=domain, nice=False), alt.Axis(grid=False, tickCount=5)
        return alt.X(f"{field}:Q", title=title, scale=scale, axis=axis)

    tips = [
        alt.Tooltip("label:N", title="group"),
        alt.Tooltip("over:N", title="baseline"),
        alt.Tooltip("percent:Q", title=title, format=_FORM),
    ]
    stem = inline(marks).mark_rule(strokeWidth=7, opacity=0.22)
    layers = [
        stem.encode(x=x("zero"), x2="percent:Q", y=y, color=colour),
        inline([{"zero": 0}]).mark_rule(strokeWidth=1.5).encode(x=x("zero")),
    ]
    # A layer only if there is an interval: an empty one is an image without a name to a screen reader.
    if with_interval := [mark for mark in marks if mark["low"] is not None]:
        line = inline(with_interval).mark_rule(strokeWidth=2.5, strokeCap="round")
        layers.append(line.encode(x=x("low"), x2="high:Q", y=y, color=colour, tooltip=tips))
    point = inline(marks).mark_point(filled=True, size=75, opacity=1)
    layers.append(point.encode(x=x("percent"), y=y, color=colour, tooltip=tips))
    layers += number_column(marks, y, "%", "percent", _FORM)
    return drawn(layers, rows_height(list(styles)), TOP)


def _is_grid(rows: list[Row]) -> bool:
    """Whether there are several baselines: of a single one, the ratios say as much."""
    return len({base.label for _, base in compared(groups_of(rows), declared(rows))}) > 1


def _chart(
    title: str, order: int, saved: Callable[[Group, Group], Saving | None], what: str, verb: str
) -> Chart:
    return Chart(
        title=title,
        page="savings",
        order=order,
        question=f"What share of the baseline's {verb} does each group save?",
        sql=MEASURED_RUNS,
        build=lambda rows, styles: _figure(rows, styles, saved, what, verb),
        empty="No group and its baseline both completed.",
        absent="without a completed counterpart in the baseline, or not comparable with it",
        applies=_is_grid,
        warmup=True if verb == "time" else None,
        tasks=("training", "inference"),
    )


charts = {
    "time_saved": _chart(
        "Percentage speedup",
        2,
        _time,
        "100 x (1 - seconds per token / those of the baseline): the share of its time that is saved.",
        "time",
    ),
    "memory_saved": _chart(
        "Percentage of memory saved",
        3,
        _memory,
        "100 x (1 - peak memory / the baseline's): the median over pairs of runs.",
        "memory",
    ),
}
