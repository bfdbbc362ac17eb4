"""The registry of charts: every file here whose name has no leading underscore is one, or a family.

A file defines `chart = Chart(...)`, whose name is the file's, or `charts`, a family of them by name. A new
file is a new figure, or several, on the page that each names; a page that no other chart names is a new page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from analysis.charts._style import Style, styles
from analysis.stats.rows import Row
from model import modules
from model.record.errors import UserError, did_you_mean

__all__ = ["Chart", "Figure", "Row", "Styles", "Table", "load", "names", "styles", "unchecked"]

Styles = dict[str, Style]


@dataclass(frozen=True)
class Table:
    """A figure's values, ready to print: for the keyboard, for screen readers and for print.

    Attributes:
        columns: heads, with units; the first is of what names a row.
        rows: cells, the first of which names the row.
        thinned: what it leaves out of the figure's values, as its heading goes on; empty if it has all.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    thinned: str = ""


@dataclass(frozen=True)
class Figure:
    """A drawn chart.

    Attributes:
        spec: Vega-Lite, data inline.
        caption: what is shown and how to read it; the report adds devices, software, commit and exclusions.
        description: the same for readers who cannot see the figure.
        interval: what the intervals are, in words.
        used: run ids that the figure shows; every other run of the study is listed as left out.
        title: heading of the figure, if not the chart's title.
        note: what the reader must know first, such as why a quantity is not shown.
        finding: what the figure shows, in one sentence made from its numbers: the figure's heading.
        table: its values.
    """

    spec: dict[str, Any]
    caption: str
    description: str
    interval: str
    used: frozenset[str]
    title: str | None = None
    note: str | None = None
    finding: str | None = None
    table: Table | None = None


@dataclass(frozen=True)
class Chart:
    """One figure of a report.

    Attributes:
        title: heading of the figure.
        page: name of the page that it is on.
        order: position among all figures; a page has the position of its first figure.
        question: what it answers, in one sentence.
        sql: its data; `$study` stands for the study's name. The page shows it, so that anyone can run it.
        build: rows of that query and a style by label -> the figure, or None if there is nothing to draw.
        empty: what to say in that case.
        absent: why a completed run is not in the figure.
        warmup: whether the warm-up is excluded; None if nothing is timed.
        applies: rows of the query -> whether the figure is about such a study. A report of another one leaves
            it out, and its page where nothing else is on it.
        tasks: those of the runs that it can show; empty for any.
    """

    title: str
    page: str
    order: int
    question: str
    sql: str
    build: Callable[[list[Row], Styles], Figure | None]
    empty: str = "No run of this study has what this figure needs."
    absent: str = "without a value for it"
    warmup: bool | None = True
    applies: Callable[[list[Row]], bool] = lambda _rows: True
    tasks: tuple[str, ...] = ("training",)


@contextmanager
def unchecked() -> Iterator[None]:
    """Build figures without Altair's check of each part, and of all data, against its schema.

    It took most of a report's time. Tests check every chart instead.
    """
    from altair.utils.schemapi import debug_mode

    with debug_mode(False):
        yield


@cache
def _registry() -> dict[str, Chart]:
    """Every chart by name, sorted."""
    registry: dict[str, Chart] = {}
    for stem in modules(Path(__file__).parent):
        module = import_module(f"analysis.charts.{stem}")
        single, family = getattr(module, "chart", None), getattr(module, "charts", {})
        members = family if single is None else {stem: single, **family}
        if not members or not all(isinstance(chart, Chart) for chart in members.values()):
            raise UserError(
                f"analysis/charts/{stem}.py defines neither `chart = Chart(...)` nor "
                '`charts = {"name": Chart(...), ...}`'
            )
        if twice := sorted(registry.keys() & members.keys()):
            raise UserError(f"analysis/charts/{stem}.py: there is another chart '{twice[0]}'")
        registry |= members
    return dict(sorted(registry.items()))


def names() -> tuple[str, ...]:
    """Every chart's name, sorted."""
    return tuple(_registry())


def load(name: str) -> Chart:
    """The chart of a name.

    Raises:
        UserError: there is no chart of that name, or a file of charts defines none.
    """
    if name not in names():
        raise UserError(f"unknown chart '{name}' {did_you_mean(name, names())}")
    return _registry()[name]
