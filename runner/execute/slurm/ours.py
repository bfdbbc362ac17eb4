"""Which job a run's ledger refers to: Slurm can later give a job's number to another job.

That happens when a controller loses its state or is set up again, and when it has used up its numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from model.record.records import LedgerEvent
from runner.state.ledger import RunState

CLOCKS = timedelta(minutes=10)  # how far the clocks of a launcher and of the controller may differ


@dataclass(frozen=True)
class Job:
    """A job, or an array element, that we submitted.

    Attributes:
        job_id: `ID`, or `ID_INDEX` for an array element.
        name: the unique name of its array; None if the ledger does not have it.
        after, before: sbatch was called between these two times; None if the ledger does not have them.
    """

    job_id: str
    name: str | None = None
    after: datetime | None = None
    before: datetime | None = None

    def is_(self, name: str, submitted: str) -> bool:
        """Whether a job of this number is ours, by its name and when it was submitted (Slurm's local time).

        Someone may have renamed our job, but no other job of this number was submitted at the same time. A
        requeue makes the submission time later, so a job whose name we do not know may also be a later one.
        """
        if self.name == name or self.after is None or self.before is None:
            return True
        try:
            moment = datetime.fromisoformat(submitted).astimezone()
        except ValueError:  # `Unknown`
            return self.name is None
        return self.after - CLOCKS <= moment and (self.name is None or moment <= self.before + CLOCKS)


def job_of(state: RunState) -> Job:
    """The job of a run's latest attempt, which must have one."""
    assert state.job_id
    intent, submitted = state.event("intent"), state.event("submitted")
    if intent is None or submitted is None:  # a requeued job made this attempt: its first one has the intent
        about = _about_its_job(state)
        intent = intent_of(state)
        submitted = next((event for event in about if event.job_id == state.job_id), None)
    return Job(
        state.job_id,
        intent.submission if intent else None,
        intent.time if intent else submitted.time if submitted else None,
        submitted.time if submitted else None,
    )


def intent_of(state: RunState) -> LedgerEvent | None:
    """What was recorded of the latest attempt's job before it was submitted."""
    about = (event for event in reversed(_about_its_job(state)) if event.event == "intent")
    return state.event("intent") or next(about, None)


def _about_its_job(state: RunState) -> list[LedgerEvent]:
    """What the ledger has about all attempts of the latest attempt's job."""
    ledger = state.folder.ledger
    numbers = {event.attempt for event in ledger if event.job_id == state.job_id}
    return [event for event in ledger if event.attempt in numbers]
