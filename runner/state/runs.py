"""The runs under a root and their status, from their folders alone, without asking Slurm."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from pydantic import ValidationError

from model.record.errors import UserError, no_runs
from model.record.files import Unreadable, tail
from model.record.folder import RunFolder, folders, run_folders, study_record
from model.record.imported import ImportedStep
from model.record.records import StepRecord
from runner.state import ledger
from runner.state.filesystem import writable
from runner.state.ledger import RunState

MOST_NAMED = 8  # runs that one message lists
_TAILS = 1024, 8192  # bytes of step records: the first is some four lines, and nearly always enough
log = logging.getLogger(__name__)


def states(root: Path, study: str | None = None) -> list[RunState]:
    """All runs under the root, or of one study. Unreadable runs are skipped with a warning."""
    return states_of(run_folders(root, study))


def states_of(folders: Iterable[RunFolder]) -> list[RunState]:
    """The runs in these folders. Unreadable runs are skipped with a warning."""
    states = []
    for folder in folders:
        try:
            states.append(ledger.brief_state(folder))
        except Unreadable as error:
            warn_once(f"{error}; skipping this run")  # collect puts the file in quarantine
    # Sorted by timestamp, because comparing aware datetimes is slow.
    return sorted(states, key=lambda state: (state.brief.study, state.brief.created_at.timestamp()))


@cache
def warn_once(text: str) -> None:
    """Log a warning, unless this process has logged the same one before."""
    log.warning(text)


def name_of(state: RunState) -> str:
    """`STUDY/RUN`: a run's name in messages and tables, which every command takes."""
    return name_of_folder(state.folder.path)


def name_of_folder(path: Path) -> str:
    """The name of the run in a folder."""
    return f"{path.parent.name}/{path.name}"


def find(root: Path, name: str, studies: Sequence[str] | None = None) -> RunState:
    """Find one run by its id, a unique prefix of it, or either of them after `STUDY/`.

    Args:
        studies: where a study can be named instead of a run, those that can; an error lists them.

    Raises:
        UserError: no run matches, or several do, or the name is empty, as that of an unset shell variable.
        Unreadable: its run.json cannot be read.
    """
    study, slash, run = name.rpartition("/")
    if not run.strip():
        raise UserError(f"'{name}' names no run; list them with `runner status`")
    if slash and study not in (studies_here := study_names(root)):
        raise no_runs(root, study, studies_here)
    if len(runs := folders_like(root, name)) == 1:
        return ledger.brief_state(runs[0])
    if not runs and name in study_names(root):
        raise UserError(f"'{name}' is a study; name one of its runs, which `runner status {name}` lists")
    if not runs:
        from difflib import get_close_matches

        listed = None if slash else studies
        paths = [folder.path for folder in run_folders(root, study or None)]
        alike = {path.name: name_of_folder(path) for path in paths}
        alike |= {} if slash else {word: word for word in studies or study_names(root)}
        near = next((f"did you mean '{alike[word]}'?" for word in get_close_matches(run, alike, n=1)), "")
        valid = f"valid studies: {', '.join(listed)}" if listed else ""
        hint = f" ({' '.join(filter(None, [near, valid]))})" if near or valid else ""
        kind = "run" if listed is None else "study or run"
        raise UserError(f"no {kind} '{name}' under {root}{hint}; list them with `runner status`")
    names = [name_of_folder(folder.path) for folder in runs[:MOST_NAMED]]
    more = f" and {len(runs) - MOST_NAMED} more" if len(runs) > MOST_NAMED else ""
    raise UserError(f"'{name}' is the start of {len(runs)} runs: {', '.join(names)}{more}; type more of one")


def folders_like(root: Path, name: str) -> list[RunFolder]:
    """The folders of the runs that a name, as `find` takes it, is the start of."""
    study, _, run = name.rpartition("/")
    return [folder for folder in run_folders(root, study or None) if run and folder.path.name.startswith(run)]


def study_names(root: Path) -> list[str]:
    """Names of the studies that have runs under the root."""
    return [name for name in folders(root) if next(run_folders(root, name), None)]


def removed_runs(root: Path, study: str) -> Mapping[str, str]:
    """Runs that a study no longer has, by id, and what these differ in; a warning if nobody can tell."""
    try:
        record = study_record(root, study)
    except Unreadable as error:
        warn_once(f"{error}; whether the study still has each run is unknown")
        return {}
    return record.removed if record else {}


def recordable(states: Iterable[RunState]) -> Iterator[RunState]:
    """Yield the runs whose ledgers this user can write to; warn of the studies of the others."""
    for state in states:
        run = state.folder.path
        ledger = run / "ledger.jsonl"
        if writable(run.parent) and writable(run) and (not ledger.exists() or os.access(ledger, os.W_OK)):
            yield state
        else:
            warn_once(f"{state.folder.path.parent} is not writable: its runs are shown as last known")


def in_flight(states: Iterable[RunState]) -> list[RunState]:
    """The runs that are queued or running."""
    return [state for state in states if state.in_flight]


def last_step(state: RunState) -> StepRecord | ImportedStep | None:
    """The newest step record of the run's latest attempt; None if there is none yet."""
    if state.phase in ("planned", "queued"):
        return None
    path = f"{os.fspath(state.folder)}/attempt-{state.attempt}/steps.jsonl"
    kind = ImportedStep if state.brief.imported else StepRecord
    for size in _TAILS:
        try:
            lines = tail(path, size).split(b"\n")[:-1]
        except OSError:  # there is none yet, or it cannot be read, and collect says why
            return None
        for line in reversed(lines):
            with suppress(ValidationError):  # a line cut short when the machine crashed, or by the tail
                return kind.model_validate_json(line)
    return None
