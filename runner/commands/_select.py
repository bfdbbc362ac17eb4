"""Selects runs by outcome and by setting, also by a setting's short name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from typing import Any

from model.record.config import SECTIONS
from model.record.errors import UserError, did_you_mean
from model.record.files import Unreadable
from model.record.outcome import Outcome
from runner.commands._console import say
from runner.inputs.options import named
from runner.inputs.settings import leaves, short_for
from runner.state.ledger import RunState

PHASES = ("planned", "queued", "running")
WORDS = (*Outcome, *PHASES)


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
    """The runs that match each `SETTING=VALUE[,VALUE]`; values of the same setting add up.

    Raises:
        UserError: no such setting, or no run has such a value.
    """
    wanted: dict[str, list[str]] = {}
    for text in only:
        name, equals, values = text.partition("=")
        if not equals:
            raise UserError(f"--only {text}: expected SETTING=VALUE, such as train.sequence_length=4096")
        wanted.setdefault(setting(name, states), []).append(values)
    for dotted, texts in wanted.items():
        states = _having(states, dotted, texts)
    return list(states)


def _having(states: Sequence[RunState], dotted: str, texts: Sequence[str]) -> list[RunState]:
    found = [(state, value) for state in states for value in _values(state, dotted)]
    seen, wanted = list(dict.fromkeys(str(value) for _, value in found)), list[Any]()
    for part, meant in (pair for text in texts for pair in named(text, [value for _, value in found])):
        if found and not meant:
            raise UserError(f"--only {dotted}={part}: no run has this value {did_you_mean(part, seen)}")
        wanted += meant
    return [state for state, value in found if str(value) in map(str, wanted)]


def _values(state: RunState, dotted: str) -> Iterable[Any]:
    """The values of a setting in a run's configuration; empty if that cannot be read."""
    if dotted in state.brief.varied:
        yield state.brief.varied[dotted]
        return
    try:
        value: Any = state.run.config
    except Unreadable as error:
        say(f"{error}; skipping this run")
        return
    for part in dotted.split("."):
        value = getattr(value, part)
    yield value


def setting(name: str, states: Iterable[RunState]) -> str:
    """The setting that a name or short name means: `train.learning_rate`, `learning_rate`, `learn`, `lr`.

    Raises:
        UserError: it means none, or several.
    """
    briefs = [state.brief for state in states]
    varied = {axis: None for brief in briefs for axis in brief.varied}
    known = list(dict.fromkeys([*varied, *_read_by({brief.task for brief in briefs})]))
    meant = short_for(name, known)
    # What varies comes first: nobody filters by a setting that all runs share.
    found = [dotted for dotted in meant if dotted in varied] or meant
    if len(found) > 1:
        raise UserError(f"--only {name}: ambiguous; it could mean {', '.join(found)}")
    if not found:
        raise UserError(f"--only {name}: no such setting {did_you_mean(name, known)}")
    return found[0]


def _read_by(tasks: Set[str]) -> list[str]:
    """The settings that runs of these tasks have; all where there are no runs."""
    read = {section for task, sections in SECTIONS.items() if task in tasks for section in sections}
    found = [dotted for dotted in leaves() if "." not in dotted or dotted.partition(".")[0] in read]
    return found if read else list(leaves())
