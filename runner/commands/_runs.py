"""Runs as several verbs select them, by outcome and by setting, and as their tables show them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any

from model.record.config import TASKS, sections_of
from model.record.errors import UserError, did_you_mean
from model.record.files import Unreadable
from model.record.imported import ImportedStep
from model.record.outcome import Outcome
from model.record.records import StepRecord
from runner.commands._console import say
from runner.inputs.options import matching_values
from runner.inputs.settings import leaves, settings_for
from runner.state.attempts import label
from runner.state.ledger import RunState
from runner.state.runs import last_step

PHASES = ("planned", "queued", "running")
WORDS = (*Outcome, *PHASES)
_TASKS_WITH = {  # by the last word of a column
    "loss": {task for task, section in TASKS.items() if section.trains},
    "tokens/s": {task for task, section in TASKS.items() if not section.compares_backends},
}


def by_outcome(
    states: Iterable[RunState], outcomes: Sequence[str], valid: Sequence[str] = WORDS
) -> list[RunState]:
    """The runs with one of these outcomes or phases; all runs if none is given.

    Args:
        outcomes: each text has one, or several with commas between them.

    Raises:
        UserError: no such outcome.
    """
    outcomes = [word.strip() for text in outcomes for word in text.split(",")]
    if unknown := [word for word in outcomes if word not in valid]:
        raise UserError(f"--outcome {unknown[0]}: no such outcome {did_you_mean(unknown[0], valid)}")
    return [state for state in states if not outcomes or (state.outcome or state.phase) in outcomes]


def by_setting(states: Sequence[RunState], only: Sequence[str]) -> list[RunState]:
    """The runs that match each `SETTING=VALUE[,VALUE]`, if readable; values of the same setting add up.

    Raises:
        UserError: no such setting, or no run has such a value.
    """
    texts_by_setting: dict[str, list[str]] = {}
    for text in only:
        name, equals, values = text.partition("=")
        if not equals:
            raise UserError(f"--only {text}: expected SETTING=VALUE, such as train.sequence_length=4096")
        texts_by_setting.setdefault(resolve_setting(name, states), []).append(values)
    for dotted, texts in texts_by_setting.items():
        with_values = list[tuple[RunState, Any]]()
        for state in states:
            if dotted in state.brief.varied:
                with_values.append((state, state.brief.varied[dotted]))
                continue
            try:
                with_values.append((state, attrgetter(dotted)(state.run.config)))
            except Unreadable as error:
                say(f"{error}; skipping this run")
        present = [value for _, value in with_values]
        wanted = set[str]()
        for part, matching in (pair for text in texts for pair in matching_values(text, present)):
            if with_values and not matching:
                near = did_you_mean(part, list(dict.fromkeys(map(str, present))))
                raise UserError(f"--only {dotted}={part}: no run has this value {near}")
            wanted.update(map(str, matching))
        states = [state for state, value in with_values if str(value) in wanted]
    return list(states)


def resolve_setting(name: str, states: Iterable[RunState]) -> str:
    """The setting that a name or short name means: `train.learning_rate`, `learning_rate`, `learn`, `lr`.

    Raises:
        UserError: it means none, or several.
    """
    briefs = [state.brief for state in states]
    varied = {axis: None for brief in briefs for axis in brief.varied}
    tasks = {brief.task for brief in briefs}
    sections = {section for task in TASKS if task in tasks for section in sections_of(task)}
    read = [dotted for dotted in leaves() if "." not in dotted or dotted.partition(".")[0] in sections]
    settings = list(dict.fromkeys([*varied, *(read if sections else leaves())]))
    meant = settings_for(name, settings)
    # What varies comes first: nobody filters by a setting that all runs share.
    chosen = [dotted for dotted in meant if dotted in varied] or meant
    if len(chosen) > 1:
        raise UserError(f"--only {name}: ambiguous; it could mean {', '.join(chosen)}")
    if not chosen:
        raise UserError(f"--only {name}: no such setting {did_you_mean(name, settings)}")
    return chosen[0]


def labels(states: Sequence[RunState], without: Sequence[str] = ()) -> list[str]:
    """A label for each run: the factors, `repeat` among them, in which the runs of its study differ.

    Args:
        without: factors to leave out.
    """
    studies = defaultdict(list)
    for state in states:
        studies[state.brief.study].append(state.brief.varied)
    shown = {}  # by study, factors in its order: those that differ, or else all
    for study, runs in studies.items():
        axes = list(dict.fromkeys(axis for factors in runs for axis in factors if axis != "repeat"))
        values = {axis: {str(factors.get(axis)) for factors in runs} for axis in [*axes, "repeat"]}
        shown[study] = [axis for axis in values if len(values[axis]) > 1] or axes
    return [
        label(state.brief, [axis for axis in shown[state.brief.study] if axis not in without])
        for state in states
    ]


def drop_unused_columns(
    columns: Sequence[str], rows: Sequence[Sequence[str]], states: Sequence[RunState]
) -> tuple[list[str], list[list[str]]]:
    """The table of these runs without columns that stay empty for all of their tasks."""
    tasks = {state.brief.task for state in states}
    places = [
        place
        for place, column in enumerate(columns)
        if not tasks or tasks & _TASKS_WITH.get(column.rpartition(" ")[2], tasks)
    ]
    return [columns[place] for place in places], [[row[place] for place in places] for row in rows]


def latest_metrics(state: RunState) -> tuple[float | None, float | None]:
    """Loss and tokens per second of a run's newest step record; None if there is none."""
    last = last_step(state)
    return (last.loss, last.tokens_per_second) if last else (None, None)


def metric_cells(loss: float | None, tokens_per_second: float | None) -> list[str]:
    """Loss and rate as a table shows them; empty if unknown."""
    return [
        "" if loss is None else f"{loss:.3f}",
        "" if tokens_per_second is None else f"{tokens_per_second:,.0f}",
    ]


def step_text(record: StepRecord | ImportedStep, steps: int) -> str:
    """`step 30/60, loss 4.321, 12,345 tokens/s`; without the loss where nothing is trained."""
    loss = ", loss not finite" if record.loss is None else f", loss {record.loss:.3f}"
    if record.loss is None and isinstance(record, StepRecord) and record.learning_rate is None:
        loss = ""
    rate = "" if record.tokens_per_second is None else f", {record.tokens_per_second:,.0f} tokens/s"
    return f"step {record.step}/{steps}{loss}{rate}"
