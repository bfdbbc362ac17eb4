"""Verdicts as tables: a line for each group, and reasons that groups share as notes below. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from analysis.report.overview import Overview, OverviewColumn, TableCell, overview
from analysis.wording import nats

if TYPE_CHECKING:
    from analysis.report.answer.statement import VerdictRow
    from analysis.report.comparison import StudyComparison


class JudgedGroup(NamedTuple):
    """A group's difference from its baseline, or from a group that is one setting apart.

    Attributes:
        row: what the report says of it.
        noise: standard deviation of the difference of two repeats, in nats; None of rates.
    """

    row: VerdictRow
    difference: str
    interval: str
    n: int
    noise: float | None = None


class VerdictTable(NamedTuple):
    """The verdicts on one quantity as a table with lettered notes.

    Attributes:
        baselines: labels of the groups that others are compared with; a column has them if they are several,
            or if what is compared is a setting.
        margin: that all verdicts were held against; None without one, or with several.
    """

    table: Overview
    baselines: tuple[str, ...]
    margin: float | None


def verdict_tables(
    comparison: StudyComparison, verdicts: Sequence[VerdictRow]
) -> dict[str, VerdictTable | None]:
    """The tables of rates, of single settings and of losses; None for one that would have no line."""
    by_group = {(row.about, row.group): row for row in verdicts}
    tables: dict[str, VerdictTable | None] = {"ratios": None, "steps": None, "losses": None}
    rates, losses = comparison.rates.compared, comparison.losses
    if rates:
        lines = {}
        for rate in rates:
            row = by_group["rate", rate.label]
            lines[rate.label] = JudgedGroup(row, row.difference, row.interval, rate.ratio.n)
        tables["ratios"] = _verdict_table(lines, "Difference", {rate.margin for rate in rates})
    if steps := comparison.rates.steps:
        lines = {}
        rows = (row for row in verdicts if row.about == "step")
        for place, (step, row) in enumerate(zip(steps, rows, strict=True)):
            lines[f"{place}"] = JudgedGroup(row, row.difference, row.interval, step.rate.ratio.n)
        tables["steps"] = _verdict_table(lines, "Difference", {step.rate.margin for step in steps})
    if losses and any(about == "loss" for about, _ in by_group):
        lines = {}
        for loss in losses:
            row, (difference, ends) = by_group["loss", loss.label], nats(loss.verdict)
            if not row.difference:
                difference = ends = ""
            lines[loss.label] = JudgedGroup(row, difference, ends, loss.verdict.n, loss.verdict.noise)
        tables["losses"] = _verdict_table(lines, "Difference, nats", {loss.margin for loss in losses})
    return tables


def _verdict_table(lines: dict[str, JudgedGroup], head: str, margins: set[float | None]) -> VerdictTable:
    baselines = tuple(dict.fromkeys(line.row.against for line in lines.values()))

    of_settings = any(line.row.setting for line in lines.values())

    def setting(line: JudgedGroup) -> TableCell:
        return TableCell(line.row.setting) if line.row.setting else TableCell()

    def against(line: JudgedGroup) -> TableCell:
        return TableCell(line.row.against) if baselines[1:] or of_settings else TableCell()

    def interval(line: JudgedGroup) -> TableCell:
        return TableCell(line.interval, note=line.row.method) if line.interval else TableCell()

    def noise(line: JudgedGroup) -> TableCell:
        of_both = "standard deviation of the difference of two repeats, pooled over both groups"
        return TableCell() if line.noise is None else TableCell(f"{line.noise:.2g}", note=of_both)

    def verdict(line: JudgedGroup) -> TableCell:
        return TableCell(line.row.verdict, note=line.row.reason)

    table = overview(
        lines,
        (
            OverviewColumn("Setting", setting, is_text=True),
            OverviewColumn("Added to" if of_settings else "Against", against, is_text=True),
            OverviewColumn(head, lambda line: TableCell(line.difference) if line.difference else TableCell()),
            OverviewColumn("Verdict", verdict, is_text=True),
            OverviewColumn("Interval", interval),
            OverviewColumn("n", lambda line: TableCell(str(line.n))),
            OverviewColumn("Repeats differ by, nats", noise),
        ),
        panels=(),
        chart_rows={},
        styles={},
    )
    return VerdictTable(table, baselines, margins.pop() if len(margins) == 1 else None)
