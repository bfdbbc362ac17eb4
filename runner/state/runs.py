"""The runs under a root and their status, from their folders alone, without asking Slurm."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path

from pydantic import ValidationError

from model.disk.files import Unreadable
from model.disk.folder import folders, run_folders
from model.disk.record import StepRecord
from model.errors import UserError
from runner.state import ledger
from runner.state.ledger import RunState

log = logging.getLogger(__name__)


def states(root: Path, study: str | None = None) -> list[RunState]:
    """All runs under the root, or of one study. Unreadable runs are skipped with a warning."""
    found = []
    for folder in run_folders(root, study):
        try:
            found.append(ledger.brief_state(folder))
        except Unreadable as error:
            _warn_once(f"{error}; skipping this run")  # collect puts the file in quarantine
    # Sorted by timestamp, because comparing aware datetimes is slow.
    return sorted(found, key=lambda state: (state.brief.study, state.brief.created_at.timestamp()))


@cache
def _warn_once(text: str) -> None:
    log.warning(text)


def find(root: Path, name: str) -> RunState:
    """Find one run by its id or a unique prefix of it.

    Raises:
        UserError: no run matches, or several do.
    """
    found = [state for state in states(root) if state.brief.run_id.startswith(name)]
    if len(found) == 1:
        return found[0]
    if found:
        ids = ", ".join(state.brief.run_id for state in found)
        raise UserError(f"'{name}' matches {len(found)} runs: {ids}")
    raise UserError(f"no run '{name}' under {root}; list them with `runner status`")


def study_names(root: Path) -> list[str]:
    """Names of the studies that have runs under the root."""
    return [name for name in folders(root) if next(run_folders(root, name), None)]


def in_flight(states: Iterable[RunState]) -> list[RunState]:
    """The runs that are queued or running."""
    return [state for state in states if state.in_flight]


def last_step(state: RunState) -> StepRecord | None:
    """The newest step record of the run's latest attempt; None if there is none yet."""
    if state.phase in ("planned", "queued"):
        return None
    path = f"{state.folder.path}/attempt-{state.attempt}/steps.jsonl"
    try:
        with open(path, "rb") as file:  # noqa: PTH123  once per run: faster than Path
            file.seek(max(0, file.seek(0, 2) - 8192))
            lines = file.read().split(b"\n")[:-1]
    except FileNotFoundError:
        return None
    for line in reversed(lines):
        with suppress(ValidationError):  # a line cut short when the machine crashed
            return StepRecord.model_validate_json(line)
    return None
