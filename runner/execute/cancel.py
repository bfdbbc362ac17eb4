"""Cancels runs that are in flight."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from model.record.outcome import Outcome
from runner.execute.slurm import client
from runner.job.tasks import load
from runner.state import ledger, process, runs
from runner.state.endings import Ending
from runner.state.ledger import RunState
from runner.state.runs import in_flight, last_step, name_of

LOST_SOON = "the run counts as lost once it has written nothing for two minutes"
log = logging.getLogger(__name__)


def cancel(states: Iterable[RunState], at_once: bool = False) -> list[RunState]:
    """Cancel the runs that are in flight, and return those that could be told; the others are logged.

    Args:
        at_once: on Slurm, leave runs that train no more time for a checkpoint than Slurm's KillWait.

    A job that other runs share continues; the cancelled run finds its cancellation in its ledger and stops.
    A job that has ended, or whose number Slurm has given to another job, is left alone.

    Raises:
        NoAnswer: Slurm cannot be reached.
    """
    open_ = in_flight(states)
    paths = {state.folder.path for state in open_}
    studies = {(path.parent.parent, path.parent.name) for path in paths}
    flying = [state for root, study in studies for state in in_flight(runs.states(root, study))]
    shared = {state.job_id for state in flying if state.job_id and state.folder.path not in paths}
    jobs = [client.job_of(state) for state in open_ if state.job_id and state.job_id not in shared]
    answer = client.cancel(jobs, () if at_once else saving(open_))
    reached = answer.alive
    for state in open_:
        if state.job_id in answer.runaway:
            unknown = "%s: Slurm's controller does not know its job %s, so there is nothing to cancel; "
            log.warning(unknown + LOST_SOON, name_of(state), state.job_id)
    for state in open_:
        if state.job_id in shared:
            reason = "cancelled; its job continues for the other runs in it"
            ledger.record_end(state.folder, state.attempt, Ending(Outcome.CANCELLED, reason))
        elif state.job_id in reached and state.phase == "queued":  # Slurm may keep no record of it
            reason = "cancelled before it started"
            ledger.record_end(state.folder, state.attempt, Ending(Outcome.CANCELLED, reason))
    moved = _moved(open_)
    told, gone = list[RunState](), {state.folder.path for state in moved}
    for state in (state for state in open_ if state.folder.path not in gone):
        manifest, name = state.latest.manifest if state.latest else None, name_of(state)
        if state.job_id:
            if state.job_id in shared | reached:
                told.append(state)
        elif manifest is None:
            log.warning("%s is still starting: cancel it again in a moment", name)
        elif process.alive(manifest) is None:
            log.warning("%s is running on %s: cancel it there", name, manifest.host)
        elif process.terminate(manifest):
            told.append(state)
        else:
            log.warning("%s is no longer running: `runner status` finds out how it ended", name)
    return [*told, *(cancel(moved, at_once) if moved else ())]


def _moved(states: Sequence[RunState]) -> list[RunState]:
    """The runs that are in another job by now: before a job ends, it notes the next one of its run."""
    asked = {None, *(state.job_id for state in states)}
    now = in_flight(runs.states_of(state.folder for state in states))
    return [state for state in now if state.job_id not in asked]


def saving(states: Iterable[RunState]) -> set[str]:
    """Ids of jobs with a run that trains, and so has something to save."""
    resuming = [state for state in states if load(state.brief.task).resumes]
    return {state.job_id for state in resuming if state.job_id and last_step(state)}
