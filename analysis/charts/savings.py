"""Percent of time and memory that the cells of a grid save against their own baselines, and as lines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from analysis.charts import Chart, Figure, Row, Styles, Table
from analysis.charts._quantities import CellQuantity
from analysis.charts._reported import (
    ReportedMark,
    hollow,
    hollow_caption,
    hollow_description,
    hollow_tips,
    mark_rows,
    marks_of,
)
from analysis.charts._rows import TOP, interval_lines, number_column, rows_height, y_of
from analysis.charts._style import colours, inline, round_ends, styles_for, vega_lite
from analysis.charts._sweep import has_lines
from analysis.charts._sweep_lines import lines_figure
from analysis.charts._values import interval, names, shortened
from analysis.query.statements import MEASURED_RUNS
from analysis.verdicts.groups import compared, declared, groups_of
from analysis.verdicts.savings import Saving, memory_saved, time_saved
from analysis.wording import number

if TYPE_CHECKING:
    import altair as alt

_FORM = ".1f"
_Saved = Callable[[list[Row]], list[Saving]]


def _figure(rows: list[Row], styles: Styles, saved: _Saved, what: str, verb: str) -> Figure | None:
    savings = saved(rows)
    if not savings:
        return None
    shown = {saving.label for saving in savings}
    theirs = marks_of([row for row in rows if row["label"] in shown], f"{verb}_saved_percentage")
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
    ranges = [short[saving.label] for saving in savings if saving.percent.is_range]
    return Figure(
        spec=_plot(savings, theirs, styles, f"percent of {verb} saved"),
        caption=f"{what} Below zero, the group takes more. Runs are paired by seed and repeat where shared."
        + (f" Lines of {names(ranges)}: ranges of the records." if ranges else "")
        + hollow_caption(theirs),
        description=f"Dot plot of the percent of {verb} saved, by group: {told}.{hollow_description(theirs)}",
        interval="; ".join(dict.fromkeys(saving.percent.method for saving in savings)),
        used=frozenset(run for saving in savings for run in saving.runs),
        finding=f"{verb.capitalize()} saved against the baseline: {told}",
        table=Table(("group", "baseline", f"{verb} saved, %", "95 % interval", "n"), tuple(cells)),
    )


def _plot(
    savings: list[Saving], theirs: dict[str, tuple[ReportedMark, ...]], styles: Styles, title: str
) -> dict[str, Any]:
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
    ends += [mark.value for own in theirs.values() for mark in own]
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
    layers += interval_lines(marks, x("low"), y=y, color=colour, tooltip=tips)
    point = inline(marks).mark_point(filled=True, size=75, opacity=1)
    layers.append(point.encode(x=x("percent"), y=y, color=colour, tooltip=tips))
    if theirs:
        mark = hollow(mark_rows(theirs)).encode(x=x("value"), y=y, color=colour)
        layers.append(mark.encode(tooltip=hollow_tips(title)))
    layers += number_column(marks, y, "%", "percent", _FORM)
    return vega_lite(layers, rows_height(list(styles)), TOP)


def _is_grid(rows: list[Row]) -> bool:
    """Whether there are several baselines: of a single one, the ratios say as much."""
    return len({base.label for _, base in compared(groups_of(rows), declared(rows))}) > 1


def _compared(rows: list[Row]) -> list[Row]:
    """The rows of groups that have a baseline."""
    labels = {group.label for group, _ in compared(groups_of(rows), declared(rows))}
    return [row for row in rows if row["label"] in labels]


def _lines(rows: list[Row], saved: _Saved, what: str, verb: str) -> Figure | None:
    others, savings = _compared(rows), saved(rows)
    if not has_lines(others):
        return None
    percent = {saving.label: saving.percent for saving in savings}
    figure = lines_figure(
        others, CellQuantity(f"{verb} saved", "percent", _FORM, what, lambda _rows: percent)
    )
    used = frozenset(run for saving in savings for run in saving.runs)
    return replace(figure, used=used, finding=None) if figure else None


def _both_charts(title: str, order: int, saved: _Saved, what: str, verb: str) -> dict[str, Chart]:
    """The chart of a quantity by cell, and the one over the grid's first axis, by name."""
    cells = Chart(
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
    lines = replace(
        cells,
        title=f"{title} over an axis",
        question=f"How does the share of the baseline's {verb} that is saved change along the grid?",
        build=lambda rows, _styles: _lines(rows, saved, what, verb),
        applies=lambda rows: _is_grid(rows) and has_lines(_compared(rows)),
    )
    return {f"{verb}_saved": cells, f"{verb}_saved_lines": lines}


charts = {
    **_both_charts(
        "Percentage speedup",
        2,
        time_saved,
        "100 x (1 - seconds per token / those of the baseline): the share of its time that is saved.",
        "time",
    ),
    **_both_charts(
        "Percentage of memory saved",
        3,
        memory_saved,
        "100 x (1 - peak memory / the baseline's): the median over pairs of runs.",
        "memory",
    ),
}
