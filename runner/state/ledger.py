"""Who works on a run, and what became of each attempt: an append-only file in each run's folder.

An attempt is claimed by making its folder, which only one launcher can do. What a launcher or the scheduler
knows about it is a line of `ledger.jsonl`; the lines of many runs are brought to disk by one `flush`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from model.disk.files import append
from model.disk.folder import Attempt, RunFolder
from model.disk.record import LedgerEvent, Outcome, RunRecord, now
from model.errors import UserError
from runner.state import process
from runner.state.brief import RunBrief, brief_of
from runner.state.endings import Ending

Phase = Literal["planned", "queued", "running", "ended"]
Executor = Literal["local", "slurm"]


@dataclass(frozen=True)
class RunState:
    """Where a run stands: its newest attempt, or the completed one; None before the first."""

    folder: RunFolder
    brief: RunBrief
    phase: Phase
    latest: Attempt | None = None
    outcome: Outcome | None = None
    reason: str | None = None

    @cached_property
    def run(self) -> RunRecord:
        """The whole plan. Raises Unreadable."""
        return self.folder.run

    @property
    def attempt(self) -> int:
        """The attempt's number; 0 before the first."""
        return self.latest.number if self.latest else 0

    @property
    def as_expected(self) -> bool:
        """Whether it ended as the study expects."""
        return self.outcome is self.brief.expected_outcome

    @property
    def done(self) -> bool:
        """Whether launching again leaves it alone: completed, or ended as expected."""
        return self.outcome is Outcome.COMPLETED or self.as_expected

    @property
    def in_flight(self) -> bool:
        """Whether it is queued or running."""
        return self.phase in ("queued", "running")

    @cached_property
    def job_id(self) -> str | None:
        """The scheduler's id of the attempt."""
        return self.latest.job_id if self.latest else None

    def event(self, kind: str) -> LedgerEvent | None:
        """The newest line of this kind about the attempt."""
        return self.latest.event(kind) if self.latest else None


def state(folder: RunFolder) -> RunState:
    """Read where a run stands, and its whole plan. Raises Unreadable."""
    found = standing(folder)
    _ = found.run
    return found


def standing(folder: RunFolder) -> RunState:
    """Read where a run stands; its whole plan is read when it is asked for. Raises Unreadable."""
    brief, latest = brief_of(folder), None
    for attempt in folder.attempts():
        latest = _state_of(folder, brief, attempt)
        if latest.outcome is Outcome.COMPLETED:
            break
    return latest or RunState(folder, brief, "planned")


def _state_of(folder: RunFolder, brief: RunBrief, attempt: Attempt) -> RunState:
    settled = attempt.settled
    if settled and not _may_go_on(brief, attempt):
        return RunState(folder, brief, "ended", attempt, *settled)
    return RunState(folder, brief, "running" if attempt.started else "queued", attempt)


def _may_go_on(brief: RunBrief, attempt: Attempt) -> bool:
    """Whether Slurm may start the job again: it was stopped, and Slurm has not said that it has ended."""
    stopped = attempt.result and attempt.result.outcome in (Outcome.CANCELLED, Outcome.TIMEOUT)
    return bool(brief.requeue and stopped and attempt.job_id and not attempt.event("ended"))


def claim(folder: RunFolder, number: int, executor: Executor) -> bool:
    """Claim an attempt for this process; False where another launcher was faster.

    Raises:
        UserError: the folder cannot be written.
    """
    try:
        folder.attempt(number).path.mkdir()
        _append(folder, number, "claimed", executor=executor, **process.me())
    except FileExistsError:
        return False
    except OSError as error:
        raise UserError(f"{folder.path}: {error.strerror}; nothing was started for this run") from error
    return True


def intend(folder: RunFolder, number: int, submission: str, index: int, count: int, slot: int = 0) -> None:
    """Note that the attempt is about to be submitted: its place in an array that has a name of its own."""
    _append(folder, number, "intent", submission=submission, index=index, count=count, slot=slot)


def submitted(folder: RunFolder, number: int, job_id: str) -> None:
    """Note the scheduler's id of an attempt."""
    _append(folder, number, "submitted", executor="slurm", job_id=job_id)


def release(folder: RunFolder, number: int, reason: str) -> None:
    """Give up a claim of which nothing was started; the number is free again.

    The line comes first: a folder without it would be an attempt in flight for ever.
    """
    _append(folder, number, "released", reason=reason)
    attempt = folder.attempt(number).path
    if attempt.exists() and not any(attempt.iterdir()):
        attempt.rmdir()


def ended(folder: RunFolder, number: int, ending: Ending) -> None:
    """Note how an attempt ended, as its launcher or scheduler saw it."""
    _append(folder, number, "ended", outcome=ending.outcome, reason=ending.reason)


def flush(root: Path) -> None:
    """Bring everything written below the root to disk: one call for the lines of any number of runs."""
    import ctypes  # 10 ms, for which `runner status` has no use

    descriptor = os.open(root, os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor):
            raise UserError(f"{root}: {os.strerror(ctypes.get_errno())}; nothing was submitted")
    finally:
        os.close(descriptor)


def _append(folder: RunFolder, number: int, event: str, **facts: Any) -> None:
    line = LedgerEvent.model_validate({"time": now(), "event": event, "attempt": number, **facts})
    try:
        append(folder.path / "ledger.jsonl", line)
    except OSError as error:
        raise UserError(
            f"{folder.path}: {error.strerror}; `{event}` of attempt {number} is not noted"
        ) from error
