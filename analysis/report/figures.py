"""Every figure of a report, numbered, with what its caption says of runs, warm-up, device and commit."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import TYPE_CHECKING

from analysis import charts, drawings
from analysis.charts import Chart, Figure
from analysis.charts._reported import REPORTED
from analysis.drawings import Drawer, Format
from analysis.query.ask import Answer, answer
from analysis.query.formats import write_csv
from analysis.report import facts, reported
from analysis.report.facts import Facts
from analysis.report.rows import Run
from analysis.stats import grouped
from analysis.verdicts.guard import in_logs
from analysis.wording import in_a_row
from model.record.units import counted

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_NAMED = 160  # characters of names, above which a caption counts the groups and does not name them
_IN_CAPTION = ("Runs", "Interval", "Warm-up", "Imported", "Left out", "Device", "Commit")


@dataclass(frozen=True)
class ReportFigure:
    """A chart with its data, ready for a page; `figure` is None where there was nothing to draw.

    Attributes:
        left_out: label, seed, run id and reason of every run that the figure does not show.
        facts: (topic, text) for the list under the caption.
        environment: the same of device, software and commit, which a page says once for all its figures.
        formats: of its drawings, SVG besides.
        data: of the first figure with the same query, which names the table of them all.
        number: of the figure in the report, from 1; None where there was nothing to draw.
        rows: answer to the query, parsed.
    """

    name: str
    chart: Chart
    sql: str
    csv: bytes
    figure: Figure | None
    left_out: list[Run]
    facts: list[tuple[str, str]]
    formats: tuple[Format, ...] = ()
    data: str = ""
    number: int | None = None
    rows: Sequence[charts.Row] = ()
    environment: Sequence[tuple[str, str]] = ()

    @property
    def files(self) -> list[tuple[str, str]]:
        """The end of the name of each file with its drawing, and what a link to it is called."""
        return drawings.files(self.formats) if self.figure else []

    @property
    def title(self) -> str:
        """The figure's own title, otherwise its chart's."""
        return (self.figure and self.figure.title) or self.chart.title

    @property
    def finding(self) -> str:
        """What the figure shows, in a sentence; its title where nothing can be said."""
        return (self.figure and self.figure.finding) or self.title

    @property
    def heading(self) -> str:
        """Number and finding."""
        return f"Figure {self.number}. {self.finding}" if self.number else self.finding

    @property
    def ends_of_left_out(self) -> str:
        """How the runs ended that the figure does not show, with their groups."""
        whys = {"completed": f"completed, {self.chart.absent}", None: "not ended"}
        by_end = grouped(self.left_out, lambda run: whys.get(run["outcome"], run["outcome"]))
        ends = [
            f"{len(ended)} {end}{_names(list(grouped(ended, itemgetter('label'))))}"
            for end, ended in by_end.items()
        ]
        return "; ".join(ends) or "no run of this study"

    @property
    def caption(self) -> str:
        """All that a caption must say, in one paragraph, for where there is no list beside it."""
        about = [*self.facts, ("Left out", self.ends_of_left_out), *self.environment] if self.figure else []
        notes = [f"{topic}: {text.removesuffix('.')}." for topic, text in about if topic in _IN_CAPTION]
        return " ".join([self.figure.caption if self.figure else self.chart.empty, *notes])


@dataclass(frozen=True)
class FigurePage:
    """A page of figures, named after its first."""

    name: str
    title: str
    figures: list[ReportFigure]


def draw_all(
    connection: DuckDBPyConnection, study: Facts, formats: tuple[Format, ...], drawer: Drawer
) -> list[ReportFigure]:
    """Build every chart that is about such a study, in the order of the report, and have it drawn."""
    answered: dict[str, tuple[list[charts.Row], bytes]] = {}  # several charts show numbers of the same rows
    reported_of, drawn = reported.marks(study), []

    def with_reported(row: charts.Row) -> charts.Row:
        run = row.get("run_id", "")
        marks = reported_of.get((run, row.get("attention"))) or reported_of.get((run, None))
        return row | {REPORTED: marks} if marks else row

    for name in charts.names():
        chart = charts.load(name)
        if chart.tasks and study.tasks.isdisjoint(chart.tasks):
            continue
        sql = facts.literal(chart.sql, study.study)
        if sql not in answered:
            table = answer(connection, sql)
            answered[sql] = [with_reported(row) for row in table.parsed()], csv_bytes(table)
        rows, csv = answered[sql]
        if not chart.applies(rows):
            continue
        with charts.unchecked():
            figure = chart.build(rows, charts.styles(study.labels, study.without_steps))
        used = figure.used if figure else frozenset()
        shown = [run for run in study.runs if run["run_id"] in used]
        if figure:
            figure.spec["description"] = figure.description
            drawer.write(name, figure.spec, formats)
        drawn.append(
            ReportFigure(
                name=name,
                chart=chart,
                sql=sql,
                csv=csv,
                figure=figure,
                left_out=[run for run in study.runs if run["run_id"] not in used],
                facts=_facts(chart, figure, shown) if figure else [],
                formats=formats,
                rows=rows,
                environment=[
                    (topic, ", ".join(entries) or "unknown")
                    for topic, entries in facts.environment(shown).items()
                ],
            )
        )

    number, numbered, first = 0, [], dict[str, str]()
    for one in sorted(drawn, key=lambda one: (one.chart.order, one.name)):
        number += one.figure is not None
        data = first.setdefault(one.sql, one.name)
        numbered.append(replace(one, data=data, number=number if one.figure else None))
    return numbered


def _facts(chart: Chart, figure: Figure, shown: list[Run]) -> list[tuple[str, str]]:
    """The list under a figure's caption, by topic: its runs, intervals, warm-up, and which logs it shows."""
    about = [("Runs", sizes(shown)), ("Interval", figure.interval), *warmup(chart, shown)]
    if foreign := [run["label"] for run in shown if run["imported"]]:
        several = f"{len(foreign)} of {counted(len(shown), 'run')}"
        by_others = f"{several} ({in_a_row(list(dict.fromkeys(foreign)))}), by other programs"
        about.append(("Imported", f"{by_others}: no certificate"))
    if flagged := list(dict.fromkeys(run["label"] for run in shown if in_logs([run])["error"])):
        about.append(("Flagged in its log", f"{in_a_row(flagged)}: see the overview"))
    return about


def in_pages(drawn: list[ReportFigure]) -> list[FigurePage]:
    """The figures of each page, in their order."""
    by_page = grouped(drawn, lambda one: one.chart.page)
    return [FigurePage(name, figures[0].chart.title, figures) for name, figures in by_page.items()]


def csv_bytes(table: Answer) -> bytes:
    """A query's answer as the report's tables hold it."""
    data = io.BytesIO()
    write_csv(table, data)
    return data.getvalue()


def sizes(shown: list[Run]) -> str:
    """How many runs each group has: the n of a figure is that of a group."""
    if not shown:
        return "no run"
    counts = Counter(run["label"] for run in shown)
    by_count = grouped(counts, counts.__getitem__)
    if len(by_count) == 1:
        ((count, names),) = by_count.items()
        return f"n = {count} in each of {len(names)} groups" if names[1:] else f"n = {count}"
    return "; ".join(f"n = {count} in {len(names)}{_names(names)}" for count, names in by_count.items())


def _names(names: list[str]) -> str:
    return f" ({text})" if len(text := in_a_row(names)) <= _NAMED else ""


def warmup(chart: Chart, shown: list[Run]) -> list[tuple[str, str]]:
    """Whether the warm-up counts; nothing where that makes no sense."""
    if chart.warmup is None:
        return []
    if not chart.warmup:
        return [("Warm-up", "included")]
    counts = sorted({run["warmup_steps"] for run in shown})
    first = "step" if counts == [1] else f"{' or '.join(map(str, counts))} steps"
    return [("Warm-up", f"left out: the first {first}")]
