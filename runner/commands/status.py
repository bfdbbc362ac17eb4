"""Show the status of every run.

Examples:
  runner status
  runner status first --watch
  runner status experiments/seeds/003
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import mean, median
from typing import Annotated, Any, TypedDict

import typer

from model.record.errors import UserError
from model.record.records import StepRecord
from model.record.units import counted
from runner.commands._console import live, print_json, say, table
from runner.commands._options import AsJson, Settings, command_prefix, studies_or_run
from runner.commands._runs import (
    by_outcome,
    by_setting,
    drop_unused_columns,
    labels,
    latest_metrics,
    metric_cells,
)
from runner.execute import queue
from runner.execute.reconcile import RunWatch, waits_for
from runner.job.phase import current
from runner.job.tasks import load
from runner.state.ledger import RunState
from runner.state.runs import last_step, name_of, removed_runs

REFRESH_SECONDS = 2.0
MOST_ROWS = 40  # above that, a table has a row for each group
HEADS = ("run", "factors", "status", "step", "loss", "last tokens/s", "reason")
GROUP_HEADS = ("study", "factors", "runs", "status", "mean loss", "median last tokens/s")


class StatusRow(TypedDict):
    """A run as `status --json` prints it."""

    study: str
    run_id: str
    factors: Mapping[str, object]
    repeat: int
    phase: str
    outcome: str | None
    expected_outcome: str
    also_expected: Sequence[str]
    reason: str | None
    stage: str | None
    waits_for: str | None
    attempt: int
    job_id: str | None
    step: int | None
    steps: int | None
    loss: float | None
    tokens_per_second: float | None
    slowest_rank: int | None
    imported: str | None
    in_study: bool


def command(
    given: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="STUDY|RUN",
            help="A study's name or file, several, or a folder of files; or a run: ID or STUDY/ID.",
        ),
    ] = None,
    outcome: Annotated[
        list[str] | None,
        typer.Option(
            help="Only runs with this outcome, or planned, queued, running; commas between several."
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only",
            metavar="SETTING=VALUE",
            help="Only runs with this setting, such as train.sequence_length=4096; a short name works "
            "(seq=4096); VALUE,VALUE for several; repeatable.",
        ),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", "-a", help=f"Show a row for each run, even above {MOST_ROWS} runs.")
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh until nothing is in flight.")] = False,
    as_json: AsJson = False,
) -> None:
    root = Settings.root
    studies, run = studies_or_run(given, queue.waiting_studies(root)) if given else ([], None)
    names: Sequence[str | None] = studies or [None]  # all studies
    if watch and as_json:
        raise UserError("--json prints one document: leave out --watch")

    notes = [line for name in names for line in queue.describe_waiting(root, name)]
    for line in () if as_json else notes:
        say(line)
    if not root.is_dir() and not notes:
        say(f"{root} does not exist yet: `runner launch STUDY` creates it, or name another with --root")

    run_watch = RunWatch(root, names[0] if len(names) == 1 else None)

    def waiting_launches() -> list[queue.Launch]:
        return [launch for name in names for launch in queue.waiting(root, name)]

    def chosen() -> list[RunState]:
        states = [
            state
            for state in run_watch.look()
            if (run is None or name_of(state) == name_of(run))
            and (not studies or state.brief.study in studies)
        ]
        return by_setting(by_outcome(states, outcome or ()), only or ())

    if as_json:
        document: list[Any] = [*rows(chosen())]
        if not (outcome or only or run):  # launches that wait: no run of theirs is claimed yet
            empty = dict.fromkeys(StatusRow.__annotations__) | {"factors": {}, "phase": "waiting"}
            empty["waits_for"] = str(queue.holder() or "another launch")
            document += [empty | {"study": launch.study} for launch in waiting_launches()]
        print_json(document)
    elif watch:
        changing = _changing(run_watch, chosen, lambda: bool(waiting_launches()))
        if sys.stdout.isatty():
            pages = (
                (_table_rows(sorted(states, key=_interest), reasons), _counts(states))
                for states, reasons in changing
            )
            live(HEADS, pages)
        else:  # one table after another
            for states, reasons in changing:
                show(states, reasons)
    elif every:
        show(chosen())
    else:
        summarize(chosen())


def rows(states: Sequence[RunState], wait_reasons: Mapping[str, str] | None = None) -> list[StatusRow]:
    """A row for each run.

    Args:
        wait_reasons: why jobs wait, by their ids; None asks Slurm.
    """
    reasons = waits_for(states) if wait_reasons is None else wait_reasons
    removed = _removed_by_study(states)
    table_rows = list[StatusRow]()
    for state in states:
        last = last_step(state)
        # What a running run does where it has no steps: a backend's trial, or the timing of attention alone.
        stage = current(state.folder.attempt(state.attempt).path) if state.phase == "running" else None
        counts = load(state.brief.task).records_steps
        table_rows.append({
            "study": state.brief.study,
            "run_id": state.brief.run_id,
            "factors": state.brief.factors,
            "repeat": state.brief.repeat,
            "phase": state.phase,
            "outcome": state.outcome,
            "expected_outcome": state.brief.expected_outcome,
            "also_expected": state.brief.also_expected,
            "reason": state.reason,
            "stage": str(stage) if stage else None,
            "waits_for": reasons.get(state.job_id or "") if state.phase == "queued" else None,
            "attempt": state.attempt,
            "job_id": state.job_id,
            "step": (last.step if last else 0) if counts else None,
            "steps": state.brief.steps if counts else None,
            "loss": last.loss if last else None,
            "tokens_per_second": last.tokens_per_second if last else None,
            "slowest_rank": last.slowest_rank if isinstance(last, StepRecord) else None,
            "imported": state.brief.imported["file"] if state.brief.imported else None,
            "in_study": state.brief.run_id not in removed[state.brief.study],
        })  # fmt: skip
    return table_rows


def _removed_by_study(states: Sequence[RunState]) -> dict[str, Mapping[str, str]]:
    """Runs that their study no longer has, by study and id, each with what it differs in."""
    studies = {state.brief.study: state.folder.path.parent for state in states}
    return {name: removed_runs(folder.parent, name) for name, folder in studies.items()}


def _say_removed(states: Sequence[RunState]) -> None:
    """Say which of these runs their study no longer has."""
    for study, gone in _removed_by_study(states).items():
        ids = {state.brief.run_id for state in states if state.brief.study == study}
        if removed := {run_id: values for run_id, values in gone.items() if run_id in ids}:
            from runner.plan import edits  # slow to import, and seldom needed

            say(edits.describe_removed(study, removed, command_prefix()))


def show(states: Sequence[RunState], wait_reasons: Mapping[str, str] | None = None) -> None:
    """Print a table of the runs, and their counts on standard error; `wait_reasons` as for `rows`."""
    table(*drop_unused_columns(HEADS, _table_rows(states, wait_reasons), states))
    say(_counts(states))
    _say_removed(states)


def summarize(states: Sequence[RunState]) -> None:
    """Print a row for each group if there are many runs and fewer groups, else a row for each run."""
    groups: dict[tuple[str, str], list[RunState]] = {}
    for state in states:
        groups.setdefault((state.brief.study, state.brief.group), []).append(state)
    if len(states) <= MOST_ROWS or len(groups) == len(states):
        show(states)
        return
    shown = labels([members[0] for members in groups.values()], without=["seed", "repeat"])
    group_rows = []
    for members, label in zip(groups.values(), shown, strict=True):
        figures = [latest_metrics(state) for state in members]
        losses = [loss for loss, _ in figures if loss is not None]
        rates = [rate for _, rate in figures if rate is not None]
        brief = members[0].brief
        group_rows.append([
            brief.study,
            "" if label == brief.run_id else label,  # that is one without a factor but seed and repeat
            str(len(members)),
            _count_by_phase(members),
            *metric_cells(mean(losses) if losses else None, median(rates) if rates else None),
        ])  # fmt: skip
    table(*drop_unused_columns(GROUP_HEADS, group_rows, states))
    differ = "groups that differ in more than seed and repeat"
    say(f"{_counts(states)}; in {len(groups)} {differ}; --all shows each run")
    _say_removed(states)


def _table_rows(states: Sequence[RunState], wait_reasons: Mapping[str, str] | None) -> list[list[str]]:
    """The rows of the table of runs, under HEADS."""
    lines = []
    for state, row, label in zip(states, rows(states, wait_reasons), labels(states), strict=True):
        aside = " (imported)" if row["imported"] else "" if row["in_study"] else " (removed from the study)"
        odd = state.outcome and state.as_expected and state.outcome != "completed"
        step = "" if row["step"] is None else str(row["step"])
        lines.append([
            name_of(state),
            label,
            f"{state.outcome or state.phase}{' (as expected)' if odd else ''}{aside}",
            f"{row['step']}/{row['steps']}" if row["steps"] else step,
            *metric_cells(row["loss"], row["tokens_per_second"]),
            state.reason or row["stage"] or (f"waits: {row['waits_for']}" if row["waits_for"] else ""),
        ])  # fmt: skip
    return lines


def _counts(states: Sequence[RunState]) -> str:
    """`6 runs: 5 completed, 1 running; 2 removed: 2 completed`."""
    gone = _removed_by_study(states)
    removed = [state for state in states if state.brief.run_id in gone[state.brief.study]]
    left = [state for state in states if state.brief.run_id not in gone[state.brief.study]]
    aside = f"; {len(removed)} removed: {_count_by_phase(removed)}" * bool(removed)
    return f"{counted(len(left), 'run')}: {_count_by_phase(left) or 'none'}{aside}"


def _count_by_phase(states: Sequence[RunState]) -> str:
    """`3 completed, 1 running`."""
    counts = Counter(str(state.outcome or state.phase) for state in states)
    return ", ".join(f"{count} {word}" for word, count in counts.items())


def _changing(
    run_watch: RunWatch, chosen: Callable[[], list[RunState]], launch_waits: Callable[[], bool]
) -> Iterator[tuple[list[RunState], Mapping[str, str]]]:
    """Yield the chosen runs, and why their jobs wait, until none is in flight.

    Args:
        launch_waits: whether a launch waits for its turn, which has runs later.
    """
    wait_reasons: Mapping[str, str] = {}
    while True:
        more_to_come, states = (
            launch_waits(),
            chosen(),
        )  # in this order: a launch that waits no longer has runs
        wait_reasons = waits_for(states) if run_watch.asked else wait_reasons
        yield states, wait_reasons
        if not more_to_come and not any(state.in_flight for state in states):
            return
        time.sleep(REFRESH_SECONDS)


def _interest(state: RunState) -> int:
    """Sort key for watching: running first, then unexpected endings, waiting, and done."""
    if state.phase == "ended":
        return 3 if state.done else 1
    return 0 if state.phase == "running" else 2
