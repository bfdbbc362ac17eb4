"""Where every run stands, after asking the scheduler and repairing what dead launchers left."""

from __future__ import annotations

import logging
from datetime import timedelta
from pathlib import Path

from model.disk.record import Outcome, now
from runner.execute.repair import repair
from runner.execute.slurm.client import Poll, poll
from runner.state import ledger
from runner.state.endings import Ending
from runner.state.ledger import RunState
from runner.state.runs import states

ACCOUNTING_DELAY = timedelta(minutes=2)  # from sbatch until accounting surely knows a job
log = logging.getLogger(__name__)


def reconciled(root: Path, study: str | None = None) -> list[RunState]:
    """Every run, after noting in the ledgers what ended without a word and repairing what was orphaned.

    Raises:
        SchedulerError: runs are in flight on Slurm and it cannot be asked.
    """
    found = states(root, study)
    if repair(found):
        found = states(root, study)
    in_doubt = [state for state in found if state.job_id and _in_doubt(state)]
    said = poll(state.job_id for state in in_doubt if state.job_id)
    if said.problem and in_doubt:
        log.warning("%s: how jobs ended is not known until it answers again", said.problem)
    endings = [(state, ending) for state in in_doubt if (ending := _ending(state, said))]
    for state, ending in endings:
        ledger.ended(state.folder, state.attempt, ending)
    return states(root, study) if endings else found


def _in_doubt(state: RunState) -> bool:
    """In flight, or ended by a signal of which only Slurm knows the cause."""
    return state.in_flight or (state.outcome is Outcome.CANCELLED and not state.event("ended"))


def _ending(state: RunState, said: Poll) -> Ending | None:
    job_id = state.job_id
    assert job_id
    assert state.latest
    ending = said.endings.get(job_id)
    if ending is None and (job_id in said.alive or not said.complete or _fresh(state)):
        return None
    result = state.latest.result
    own = Ending(result.outcome, result.reason) if result else None
    if ending:
        # To Slurm a job has COMPLETED that was stopped by a signal which Slurm did not send.
        return own if own and ending.outcome is Outcome.LOST else ending
    lost = f"Slurm does not know job {job_id} any more, and the attempt left no result"
    return own or Ending(Outcome.LOST, lost)


def _fresh(state: RunState) -> bool:
    """Whether accounting may not know the job yet."""
    submitted = state.event("submitted")
    return submitted is not None and now() - submitted.time < ACCOUNTING_DELAY
