"""What a report shows of each task, one file a task: its setup, its columns, its tables and its words."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from analysis.report.answer import AnswerParts
from analysis.report.overview import OverviewColumn, PanelSpec, group_lines, outcome, size
from analysis.report.render import templates
from model.record.config import TASKS

if TYPE_CHECKING:
    from analysis.report.answer.statement import VerdictRow
    from analysis.report.facts import Facts, GroupFacts
    from analysis.report.rows import Run
    from analysis.report.topics import Setting
    from analysis.stats import Estimate


@dataclass(frozen=True)
class RunColumn:
    """A column of the table of runs."""

    head: str
    text: Callable[[Run], str]


class CarriedTable(NamedTuple):
    """A table that the report carries.

    Attributes:
        note: what it shows, for its caption.
    """

    sql: str
    note: str


Cite = Callable[..., str]  # of keys, the LaTeX that cites those of them that the text has a reference for


@dataclass(frozen=True)
class GroupColumn:
    """The last column of a text's table of groups.

    Attributes:
        form: format of its medians.
        note: what it is, for the caption.
    """

    head: str
    estimate: Callable[[GroupFacts], Estimate | None]
    form: str
    note: str


def _of_own_runs(facts: Facts) -> list[str]:
    own = (run for run in facts.runs if run["device"] and not run["imported"])
    return list(dict.fromkeys(name for run in own if (name := run["attention"])))


@dataclass(frozen=True)
class WriteupParts:
    """What a text says of runs of one task.

    Attributes:
        references: keys of what the program runs for it, in `analysis/writeup/references.py`.
        backends: names of the attention backends that were measured.
        methods: how they were measured, in sentences of LaTeX.
        last: last column of the table of groups; None for none.
        columns: of the table of groups, in place of rates; empty for rates.
        note: what that table shows, for its caption.
    """

    references: tuple[str, ...] = ()
    backends: Callable[[Facts], list[str]] = _of_own_runs
    methods: Callable[[Sequence[Run], Cite], Iterable[str]] = lambda _runs, _cite: ()
    last: GroupColumn | None = None
    columns: tuple[OverviewColumn, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class ReportTask:
    """What a report shows of the runs of one task.

    If what it shows takes markup (tables of the overview, methods, what the page of a run says), this is in
    `task_NAME.html` among the templates.

    Attributes:
        settings: the topics of the setup table that are the task's own.
        answer: what the answer says of its runs.
        writeup: what a text says of them.
        lines: of the overview's table, by what names the line: its groups, for most tasks.
        first: head of the column of these names.
        columns, panels: of the overview: of its table, and its four small figures.
        run_columns: of the table of runs, after the number of steps.
        run_note: what the caption of that table says of its columns.
        steps: what a run repeats, as a heading.
        passes: which of them its FLOP count, in words; empty where none are counted.
        measured: what is assumed to be distributed log-normally.
        checked: at what a backend's certificate for it is made.
        used, not_used: what becomes of a backend that is right, and of one that is not.
        metrics: tables that the report carries, by name.
        records: what a run's records are called; they are in `table` of the database, by `table_order`.
        has_mfu: whether model FLOPs utilisation is computed.
        ranks: whether its groups are ranked by their rates.
    """

    name: str
    settings: Callable[[Sequence[Run]], Iterator[Setting]]
    run_columns: tuple[RunColumn, ...]
    run_note: str
    used: str
    not_used: str
    answer: AnswerParts = field(default_factory=AnswerParts)
    writeup: WriteupParts = field(default_factory=WriteupParts)
    lines: Callable[[Facts, Sequence[VerdictRow]], Mapping[str, Any]] = group_lines
    first: str = "Group"
    columns: tuple[OverviewColumn, ...] = (
        OverviewColumn("n", size),
        OverviewColumn("Outcome", outcome, True),
    )
    panels: tuple[PanelSpec, ...] = ()
    steps: str = "Steps"
    passes: str = ""
    measured: str = "rates"
    checked: str = "at the shape and precision of the run"
    metrics: Mapping[str, CarriedTable] = field(default_factory=dict)
    records: str = "step records"
    table: str = "steps"
    table_order: str = "step"
    has_mfu: bool = True
    ranks: bool = True

    @property
    def trains(self) -> bool:
        """Whether its losses are compared."""
        return TASKS[self.name].trains

    @property
    def calls_every_backend(self) -> bool:
        """Whether each run calls all backends, and not one that it has a certificate of."""
        return TASKS[self.name].compares_backends

    @property
    def template(self) -> str:
        """Template with the task's own parts of pages; one for all tasks that have none of their own."""
        own = f"task_{self.name}.html"
        return own if (templates() / own).is_file() else "task.html"


@cache
def load(name: str) -> ReportTask:
    """The task of a name."""
    loaded: ReportTask = importlib.import_module(f"{__name__}.{name}").TASK
    return loaded


def of_run(run: Run) -> ReportTask:
    """The task of a run."""
    return load(run["task"])


def of_study(runs: Sequence[Run]) -> ReportTask:
    """The task of all runs; where they have several, that which every other adds to."""
    tasks = {run["task"] for run in runs}
    return load(tasks.pop() if len(tasks) == 1 else "training")
