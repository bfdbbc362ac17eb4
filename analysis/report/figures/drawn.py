"""Every figure of a report, numbered, with what its caption says of runs, warm-up, device and commit."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING

from analysis import charts, drawings
from analysis.charts import Chart, Figure
from analysis.drawings import Drawer, Format
from analysis.query.ask import Answer, answer
from analysis.query.formats import write_csv
from analysis.report import facts
from analysis.report.facts import Facts, Row
from analysis.stats import by_label, grouped
from analysis.verdicts.guard import in_logs
from analysis.wording import in_a_row
from model.record.units import counted

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_NAMED = 160  # characters of names, above which a caption counts the groups and does not name them
_IN_CAPTION = ("Runs", "Interval", "Warm-up", "Imported", "Left out", "Device", "Commit")


@dataclass(frozen=True)
class Drawn:
    """A chart with its data, ready for a page; `figure` is None where there was nothing to draw.

    Attributes:
        left_out: label, seed, run id and reason of every run that the figure does not show.
        facts: (topic, text) for the list under the caption.
        formats: of its drawings, SVG besides.
        data: of the first figure with the same query, which names the table of them all.
        number: of the figure in the report, from 1; None where there was nothing to draw.
    """

    name: str
    chart: Chart
    sql: str
    csv: bytes
    figure: Figure | None
    left_out: list[Row]
    facts: list[tuple[str, str]]
    formats: tuple[Format, ...] = ()
    data: str = ""
    number: int | None = None

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
    def absent(self) -> str:
        """Why a completed run is not in the figure."""
        return _absent(self.chart, self.figure)

    @property
    def caption(self) -> str:
        """All that a caption must say, in one paragraph, for where there is no list beside it."""
        said = [f"{topic}: {text.removesuffix('.')}." for topic, text in self.facts if topic in _IN_CAPTION]
        return " ".join([self.figure.caption if self.figure else self.chart.empty, *said])


@dataclass(frozen=True)
class Page:
    """A page of figures, named after its first."""

    name: str
    title: str
    figures: list[Drawn]


def every(
    connection: DuckDBPyConnection, known: Facts, formats: tuple[Format, ...], drawer: Drawer
) -> list[Drawn]:
    """Build every chart that is about such a study, in the order of the report, and have it drawn."""
    ask = cache(partial(_asked, connection))  # several charts show numbers of the same rows
    drawn = []
    for name in charts.names():
        if each := _draw(ask, name, known, formats):
            drawn.append(each)
            if each.figure:
                drawer.write(name, each.figure.spec, formats)
    number, numbered, first = 0, [], dict[str, str]()
    for each in sorted(drawn, key=lambda one: (one.chart.order, one.name)):
        number += each.figure is not None
        data = first.setdefault(each.sql, each.name)
        numbered.append(replace(each, data=data, number=number if each.figure else None))
    return numbered


def in_pages(drawn: list[Drawn]) -> list[Page]:
    """The figures of each page, in their order."""
    names = dict.fromkeys(figure.chart.page for figure in drawn)
    grouped = {name: [figure for figure in drawn if figure.chart.page == name] for name in names}
    return [Page(name, figures[0].chart.title, figures) for name, figures in grouped.items()]


def csv_bytes(found: Answer) -> bytes:
    """A query's answer as the report's tables hold it."""
    data = io.BytesIO()
    write_csv(found, data)
    return data.getvalue()


def _asked(connection: DuckDBPyConnection, sql: str) -> tuple[list[Row], bytes]:
    """A query's rows, which charts leave as they are, and its table."""
    found = answer(connection, sql)
    return found.parsed(), csv_bytes(found)


def _draw(
    ask: Callable[[str], tuple[list[Row], bytes]], name: str, known: Facts, formats: tuple[Format, ...]
) -> Drawn | None:
    chart = charts.load(name)
    if chart.tasks and known.tasks.isdisjoint(chart.tasks):
        return None
    sql = facts.literal(chart.sql, known.study)
    rows, table = ask(sql)
    if not chart.applies(rows):
        return None
    with charts.unchecked():
        figure = chart.build(rows, charts.styles(known.labels, known.without_steps))
    if figure:
        figure.spec["description"] = figure.description
    shown = [run for run in known.runs if figure and run["run_id"] in figure.used]
    left_out = [run for run in known.runs if not figure or run["run_id"] not in figure.used]
    said = _facts(chart, figure, shown, left_out) if figure else []
    return Drawn(name, chart, sql, table, figure, left_out, said, formats)


def _facts(chart: Chart, figure: Figure, shown: list[Row], left_out: list[Row]) -> list[tuple[str, str]]:
    where = [(topic, ", ".join(entries) or "unknown") for topic, entries in facts.environment(shown).items()]
    return [
        ("Runs", sizes(shown)),
        ("Interval", figure.interval),
        *_warmup(chart, shown),
        *_imported(shown),
        ("Left out", _left_out(left_out, _absent(chart, figure))),
        *where,
    ]


def sizes(shown: list[Row]) -> str:
    """How many runs each group has: the n of a figure is that of a group."""
    if not shown:
        return "no run"
    counts = Counter(run["label"] for run in shown)
    by_count = grouped(counts, counts.__getitem__)
    if len(by_count) == 1:
        ((count, names),) = by_count.items()
        return f"n = {count} in each of {len(names)} groups{_names(names)}" if names[1:] else f"n = {count}"
    return "; ".join(f"n = {count} in {len(names)}{_names(names)}" for count, names in by_count.items())


def _names(names: list[str]) -> str:
    return f" ({said})" if len(said := in_a_row(names)) <= _NAMED else ""


def _warmup(chart: Chart, shown: list[Row]) -> list[tuple[str, str]]:
    if chart.warmup is None:
        return []
    if not chart.warmup:
        return [("Warm-up", "included")]
    counts = sorted({run["warmup_steps"] for run in shown})
    first = "step" if counts == [1] else f"{' or '.join(map(str, counts))} steps"
    return [("Warm-up", f"excluded: the first {first}, by the rule in Methods")]


def _imported(shown: list[Row]) -> list[tuple[str, str]]:
    foreign = [run["label"] for run in shown if run["imported"]]
    several = f"{len(foreign)} of {counted(len(shown), 'run')}"
    named = f"{several} ({in_a_row(list(dict.fromkeys(foreign)))}), by other programs"
    wrong = dict.fromkeys(run["label"] for run in shown if in_logs([run])["error"])
    said = [("Imported", f"{named}: no certificate")] if foreign else []
    return [*said, ("Wrong in its log", f"{in_a_row(list(wrong))}: see the overview")] if wrong else said


def _absent(chart: Chart, figure: Figure | None) -> str:
    if figure and chart.tasks == ("attention",):
        return "at a shape that the figure does not show"
    return chart.absent


def _left_out(runs: list[Row], absent: str) -> str:
    """Groups by how their runs ended; the list below the figure names every run."""
    whys = {"completed": f"completed, {absent}", None: "not ended"}
    ended = grouped(runs, lambda run: whys.get(run["outcome"], run["outcome"]))
    said = [f"{len(mine)} {outcome}{_names(list(by_label(mine)))}" for outcome, mine in ended.items()]
    return "; ".join(said) or "no run of this study"
