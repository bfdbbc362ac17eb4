"""A run's status, and its ledger: who claimed each attempt and how it ended.

An attempt is claimed by renaming a folder that holds the claim to the attempt's name, which only one launcher
can do. What a launcher or the scheduler learns about it is a line in `ledger.jsonl`; one `flush` syncs the
lines of many runs to disk.
"""

from __future__ import annotations

import errno
import os
import shutil
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pydantic import AliasChoices, AliasPath, BaseModel, Field

from model.record.config import TASKS, ParallelConfig, TrainConfig
from model.record.errors import UserError
from model.record.files import Unreadable, append, read, temporary, write_text
from model.record.folder import CLAIM, Attempt, RunFolder
from model.record.outcome import Outcome
from model.record.records import SCHEMA_VERSION, LedgerEvent, RunRecord, Version, now
from runner.state import process
from runner.state.endings import Ending

Phase = Literal["planned", "queued", "running", "ended"]
Executor = Literal["local", "slurm"]


class RunBrief(BaseModel, frozen=True):
    """The part of `run.json` that a run's status needs; parsing it is much faster than parsing all of it.

    The rest is not validated, so the file may still be an invalid RunRecord.
    """

    schema_version: Version = SCHEMA_VERSION
    run_id: str
    group: str = ""
    study: str
    repeat: int = 1
    position: int | None = None
    block: int | None = None
    factors: dict[str, str | int | float | bool]
    planned_steps: int = Field(
        TrainConfig.model_fields["steps"].default,
        validation_alias=AliasChoices(
            *(AliasPath("config", section.key, "steps") for section in TASKS.values())
        ),
    )
    task: str = Field("training", validation_alias=AliasPath("config", "task"))
    expected_outcome: Outcome
    also_expected: tuple[Outcome, ...] = ()
    because: str | None = None
    chain: bool = False
    created_at: datetime
    imported: dict[str, Any] | None = None

    @property
    def steps(self) -> int | None:
        """Steps that were planned; None if nobody knows, as with most imported runs."""
        recorded = self.imported is None or "planned_steps" in self.model_fields_set
        return self.planned_steps if recorded else None

    @property
    def expected(self) -> tuple[Outcome, ...]:
        """Any of these is as the study expects; the likeliest first."""
        return self.expected_outcome, *self.also_expected

    @property
    def varied(self) -> dict[str, str | int | float | bool]:
        """The values that tell runs of one study apart: the factors, and which repeat it is."""
        return {**self.factors, "repeat": self.repeat}


@dataclass(frozen=True)
class RunState:
    """A run's status: that of its newest attempt, or of the completed one.

    Attributes:
        latest: that attempt; None before the first.
        highest: the highest number of an attempt when the status was read. The next attempt has the number
            after it: if another launcher has started that one since, it cannot be claimed again.
    """

    folder: RunFolder
    brief: RunBrief
    phase: Phase
    latest: Attempt | None = None
    outcome: Outcome | None = None
    reason: str | None = None
    highest: int = 0

    @cached_property
    def run(self) -> RunRecord:
        """The complete run.json, read on first use. Raises Unreadable."""
        return self.folder.run

    @property
    def attempt(self) -> int:
        """The attempt's number; 0 before the first."""
        return self.latest.number if self.latest else 0

    @property
    def as_expected(self) -> bool:
        """Whether it ended as the study expects."""
        return self.outcome in self.brief.expected

    @property
    def done(self) -> bool:
        """Whether another launch skips it: it completed, or ended as expected."""
        return self.outcome is Outcome.COMPLETED or self.as_expected

    @property
    def in_flight(self) -> bool:
        """Whether it is queued or running."""
        return self.phase in ("queued", "running")

    @cached_property
    def job_id(self) -> str | None:
        """Slurm's job id of the attempt; None for a local run, and before submission."""
        return self.latest.job_id if self.latest else None

    def event(self, kind: str) -> LedgerEvent | None:
        """The newest ledger line of this kind for the attempt."""
        return self.latest.event(kind) if self.latest else None


def brief_of(folder: RunFolder) -> RunBrief:
    """Read the status part of a run's run.json. Raises Unreadable."""
    return read(f"{os.fspath(folder)}/run.json", RunBrief)


def state(folder: RunFolder) -> RunState:
    """Read a run's status and its complete run.json. Raises Unreadable."""
    status = brief_state(folder)
    _ = status.run
    return status


def brief_state(folder: RunFolder) -> RunState:
    """Read a run's status; the complete run.json is read on first use. Raises Unreadable."""
    brief, attempts, latest = brief_of(folder), folder.attempts(), None
    for attempt in attempts:
        highest, (outcome, reason) = attempts[-1].number, attempt.settled or (None, None)
        own = attempt.result.outcome if attempt.result else None
        stopped = own is Outcome.CANCELLED or (own is Outcome.TIMEOUT and brief.chain)
        # Slurm may restart a job that was stopped, or say why, and has not confirmed its end.
        may_go_on = stopped and attempt.job_id and not attempt.event("ended")
        if outcome and not may_go_on:
            latest = RunState(folder, brief, "ended", attempt, outcome, reason, highest)
        else:
            phase: Phase = "running" if attempt.started else "queued"
            latest = RunState(folder, brief, phase, attempt, highest=highest)
        if latest.outcome is Outcome.COMPLETED:
            break
    return latest or RunState(folder, brief, "planned")


def claim(folder: RunFolder, number: int, executor: Executor, parallel: ParallelConfig | None = None) -> bool:
    """Claim an attempt for this process; returns False if another launcher already has it.

    Args:
        parallel: the attempt's processes in place of the run's own.

    Raises:
        UserError: the run's folder is not writable.
    """
    claimed = new_event(number, "claimed", executor=executor, parallel=parallel, **process.own_identity())
    try:
        if not _published(folder.attempt(number).path, claimed):
            return False
    except OSError as error:
        raise UserError(f"{folder.path}: {error.strerror}; nothing was started for this run") from error
    _append(folder, claimed)
    return True


def _published(attempt: Path, claim: LedgerEvent) -> bool:
    """Make an attempt's folder with a claim in it, in one step; returns False if there is another claim.

    The folder's content decides, not the error: NFS may report a failure for a rename that it has done.
    """
    if attempt.exists():
        return False  # renaming would replace an empty folder
    aside = temporary(attempt)
    try:
        aside.mkdir(exist_ok=True)
        write_text(aside / CLAIM, claim.model_dump_json() + "\n", sync=False)
        aside.rename(attempt)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOENT):
            raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    try:
        return read(attempt / CLAIM, LedgerEvent) == claim
    except Unreadable:
        return False


def record_intent(
    folder: RunFolder, number: int, submission: str, index: int, count: int, slot: int = 0
) -> None:
    """Record that an attempt is about to be submitted, with its place in a uniquely named job array."""
    _append(folder, new_event(number, "intent", submission=submission, index=index, count=count, slot=slot))


def record_job(folder: RunFolder, number: int, job_id: str) -> None:
    """Record the job id that Slurm gave an attempt."""
    _append(folder, new_event(number, "submitted", executor="slurm", job_id=job_id))


def release(folder: RunFolder, number: int, reason: str) -> None:
    """Release a claim from which nothing was started; the attempt's number can be used again.

    The line is written first: a folder that is left without it would look in flight forever.
    """
    _append(folder, new_event(number, "released", reason=reason))
    attempt = folder.attempt(number).path
    if attempt.exists() and is_untouched(folder, number):
        aside = temporary(attempt)
        attempt.rename(aside)  # nobody finds it without its claim
        shutil.rmtree(aside)


def is_untouched(folder: RunFolder, number: int) -> bool:
    """Whether an attempt's folder holds nothing but its claim, so that nothing was started."""
    return {path.name for path in folder.attempt(number).path.iterdir()} <= {CLAIM}


def record_end(folder: RunFolder, number: int, ending: Ending) -> None:
    """Record how an attempt ended, as seen by its launcher or the scheduler."""
    nodes = ",".join(ending.failed_nodes) or None
    _append(folder, new_event(number, "ended", outcome=ending.outcome, reason=ending.reason, host=nodes))


def flush(root: Path) -> None:
    """Sync everything written under the root to disk, in one call for any number of runs."""
    import ctypes  # slow to import, and `runner status` does not need it

    descriptor = os.open(root, os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor):
            raise UserError(f"{root}: {os.strerror(ctypes.get_errno())}; nothing was submitted")
    finally:
        os.close(descriptor)


def new_event(number: int, event: str, **facts: Any) -> LedgerEvent:
    """A line about an attempt, as of now."""
    return LedgerEvent.model_validate({"time": now(), "event": event, "attempt": number, **facts})


def _append(folder: RunFolder, event: LedgerEvent) -> None:
    try:
        append(folder.path / "ledger.jsonl", event)
    except OSError as error:
        raise UserError(
            f"{folder.path}: {error.strerror}; `{event.event}` of attempt {event.attempt} was not recorded"
        ) from error
