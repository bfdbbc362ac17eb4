"""Who works on a run, and what became of each attempt: an append-only file in each run's folder.

An attempt is claimed by making its folder, which only one launcher can do. What a launcher or the scheduler
knows about it is a line of `ledger.jsonl`; the lines of many runs are brought to disk by one `flush`.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

from model import machine
from model.errors import UserError
from model.files import append
from model.record import LedgerEvent, Manifest, Outcome, Result, RunBrief, RunFolder, RunRecord, now, settle
from runner.outcomes import Ending

Phase = Literal["planned", "queued", "running", "ended"]
Executor = Literal["local", "slurm"]


@dataclass(frozen=True)
class RunState:
    """Where a run stands: its newest attempt, or the completed one."""

    folder: RunFolder
    brief: RunBrief
    phase: Phase
    attempt: int = 0
    outcome: Outcome | None = None
    reason: str | None = None
    events: tuple[LedgerEvent, ...] = ()

    @cached_property
    def run(self) -> RunRecord:
        """The whole plan. Raises Unreadable."""
        return self.folder.run

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
        """Whether somebody is at it."""
        return self.phase in ("queued", "running")

    @cached_property
    def job_id(self) -> str | None:
        """The scheduler's id of the attempt."""
        return next((event.job_id for event in reversed(self.events) if event.job_id), None)

    def event(self, kind: str) -> LedgerEvent | None:
        """The newest line of this kind about the attempt."""
        return next((event for event in reversed(self.events) if event.event == kind), None)


def state(folder: RunFolder) -> RunState:
    """Read where a run stands, and its whole plan. Raises Unreadable."""
    found = standing(folder)
    _ = found.run
    return found


def standing(folder: RunFolder) -> RunState:
    """Read where a run stands; its whole plan is read when it is asked for. Raises Unreadable."""
    brief, ledger = folder.brief, folder.ledger
    latest: RunState | None = None
    for number in folder.attempts():
        latest = _attempt_state(folder, brief, number, _about(ledger, number))
        if latest.outcome is Outcome.COMPLETED:
            break
    return latest or RunState(folder, brief, "planned")


def _about(ledger: list[LedgerEvent], number: int) -> tuple[LedgerEvent, ...]:
    """The lines about an attempt since it was last released: its number can be claimed again."""
    events = [event for event in ledger if event.attempt == number]
    released = [place for place, event in enumerate(events) if event.event == "released"]
    return tuple(events[released[-1] + 1 :] if released else events)


def _attempt_state(
    folder: RunFolder, brief: RunBrief, number: int, events: tuple[LedgerEvent, ...]
) -> RunState:
    result = folder.result(number)
    settled = settle(result, list(events))
    if settled and not _may_go_on(brief, result, events):
        return RunState(folder, brief, "ended", number, *settled, events)
    phase: Phase = "running" if folder.started(number) else "queued"
    return RunState(folder, brief, phase, number, events=events)


def _may_go_on(brief: RunBrief, result: Result | None, events: tuple[LedgerEvent, ...]) -> bool:
    """Whether Slurm may start the job again: it was stopped, and Slurm has not said that it has ended."""
    if not (brief.requeue and result and result.outcome in (Outcome.CANCELLED, Outcome.TIMEOUT)):
        return False
    return any(event.job_id for event in events) and not any(event.event == "ended" for event in events)


def claim(folder: RunFolder, number: int, executor: Executor) -> bool:
    """Claim an attempt for this process; False where another launcher was faster.

    Raises:
        UserError: the folder cannot be written.
    """
    try:
        folder.attempt(number).mkdir()
        _append(folder, number, "claimed", executor=executor, **_me())
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
    attempt = folder.attempt(number)
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


def alive(process: Manifest | LedgerEvent) -> bool | None:
    """Whether a process on this machine still runs; None where it was on another one."""
    if process.host != socket.gethostname():
        return None
    return process.pid is not None and machine.runs(process.pid, process.pid_started)


def in_flight(states: Iterable[RunState]) -> list[RunState]:
    """Those that somebody is at."""
    return [state for state in states if state.in_flight]


@cache
def _me() -> dict[str, Any]:
    return {"host": socket.gethostname(), "pid": os.getpid(), "pid_started": machine.started(os.getpid())}


def _append(folder: RunFolder, number: int, event: str, **facts: Any) -> None:
    line = LedgerEvent.model_validate({"time": now(), "event": event, "attempt": number, **facts})
    try:
        append(folder.path / "ledger.jsonl", line)
    except OSError as error:
        raise UserError(
            f"{folder.path}: {error.strerror}; `{event}` of attempt {number} is not noted"
        ) from error
