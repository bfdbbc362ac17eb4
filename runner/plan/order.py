"""The places of a plan's runs among those that earlier launches of the study planned."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from model.record.files import Unreadable
from model.record.folder import run_folders
from model.record.records import RunRecord
from runner.state.ledger import RunBrief, RunState, brief_of

Planned = tuple[RunRecord, RunState | None]


def placed(runs: list[Planned], root: Path, study: str) -> list[Planned]:
    """The same runs with their places: earlier ones keep theirs, and new ones come after all of them.

    A block therefore holds runs that were planned together. A run that an earlier version planned without a
    place gets one only if it starts again.
    """
    new = sorted((run for run, state in runs if _place(state) is None), key=lambda run: run.position or 0)
    known = _briefs(root, study) if new else []
    first = 1 + max((brief.position or 0 for brief in known), default=0)
    first_block = 1 + max((brief.block or 0 for brief in known), default=0)
    blocks = {
        block: n for n, block in enumerate(sorted({run.block for run in new if run.block}), first_block)
    }
    fresh = {
        run.run_id: {"position": first + n, "block": run.block and blocks[run.block]}
        for n, run in enumerate(new)
    }
    return [(run.model_copy(update=_place(state) or fresh[run.run_id]), state) for run, state in runs]


def _place(state: RunState | None) -> dict[str, int | None] | None:
    """A run's recorded place; None if it has none."""
    if state is None or state.run.position is None:
        return None
    return {"position": state.run.position, "block": state.run.block}


def _briefs(root: Path, study: str) -> list[RunBrief]:
    found = []
    for folder in run_folders(root, study):
        with suppress(Unreadable):  # who reads the runs themselves says so
            found.append(brief_of(folder))
    return found
