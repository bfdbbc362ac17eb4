"""Who works on a run, and what became of each attempt: an append-only file in each run's folder.

An attempt is claimed by making its folder, which only one launcher can do. What a launcher or the scheduler
knows about it is a line of `ledger.jsonl`.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Literal

import psutil

from model.record import LedgerEvent, Manifest, Outcome, RunFolder, RunRecord, append, now, settle
from runner.outcomes import Ending

Phase = Literal["planned", "queued", "running", "ended"]


@dataclass(frozen=True)
class RunState:
    """Where a run stands: its newest attempt, or the completed one."""

    folder: RunFolder
    run: RunRecord
    phase: Phase
    attempt: int = 0
    outcome: Outcome | None = None
    reason: str | None = None
    events: tuple[LedgerEvent, ...] = ()

    @property
    def as_expected(self) -> bool:
        """Whether it ended as the study expects."""
        return self.outcome is self.run.expected_outcome

    @property
    def done(self) -> bool:
        """Whether launching again leaves it alone: completed, or ended as expected."""
        return self.outcome is Outcome.COMPLETED or self.as_expected

    @property
    def job_id(self) -> str | None:
        """The scheduler's id of the attempt."""
        return next((event.job_id for event in reversed(self.events) if event.job_id), None)

    @property
    def claim(self) -> LedgerEvent | None:
        """The line that claimed the attempt."""
        return next((event for event in self.events if event.event == "claimed"), None)


def state(folder: RunFolder) -> RunState:
    """Read where a run stands. Raises Unreadable."""
    run, ledger = folder.run, folder.ledger
    latest: RunState | None = None
    for number in folder.attempts():
        events = tuple(event for event in ledger if event.attempt == number)
        latest = _attempt_state(folder, run, number, events)
        if latest.outcome is Outcome.COMPLETED:
            break
    return latest or RunState(folder, run, "planned")


def _attempt_state(
    folder: RunFolder, run: RunRecord, number: int, events: tuple[LedgerEvent, ...]
) -> RunState:
    if settled := settle(folder.result(number), list(events)):
        return RunState(folder, run, "ended", number, *settled, events)
    phase: Phase = "running" if folder.manifest(number) else "queued"
    return RunState(folder, run, phase, number, events=events)


def claim(folder: RunFolder, number: int, executor: Literal["local", "slurm"]) -> bool:
    """Claim an attempt for this process; False where another launcher was faster."""
    try:
        folder.attempt(number).mkdir()
    except FileExistsError:
        return False
    me = psutil.Process()
    _append(
        folder,
        LedgerEvent(
            time=now(), event="claimed", attempt=number, executor=executor,
            host=socket.gethostname(), pid=me.pid, pid_started=me.create_time(),
        ),
    )  # fmt: skip
    return True


def submitted(folder: RunFolder, number: int, job_id: str) -> None:
    """Note the scheduler's id of an attempt."""
    _append(
        folder, LedgerEvent(time=now(), event="submitted", attempt=number, executor="slurm", job_id=job_id)
    )


def ended(folder: RunFolder, number: int, ending: Ending) -> None:
    """Note how an attempt ended, as its launcher or scheduler saw it."""
    _append(
        folder,
        LedgerEvent(time=now(), event="ended", attempt=number, outcome=ending.outcome, reason=ending.reason),
    )


def alive(process: Manifest | LedgerEvent) -> bool | None:
    """Whether a process on this machine still runs; None where it was on another one."""
    if process.host != socket.gethostname():
        return None
    try:
        found = psutil.Process(process.pid)
        return (
            abs(found.create_time() - (process.pid_started or 0)) < 1
            and found.status() != psutil.STATUS_ZOMBIE
        )
    except psutil.NoSuchProcess:
        return False


def _append(folder: RunFolder, event: LedgerEvent) -> None:
    append(folder.path / "ledger.jsonl", event, sync=True)
