"""Determines the status of every run: asks the scheduler, and repairs what dead launchers left behind."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from model.disk.folder import RunFolder, run_folders
from model.disk.record import Outcome, now
from model.errors import UserError
from runner.execute.repair import repair
from runner.execute.slurm.client import Poll, poll, waiting
from runner.execute.slurm.ours import job_of
from runner.state import culprit, ledger
from runner.state.endings import Ending
from runner.state.ledger import RunState
from runner.state.runs import recordable, states_of, warn_once
from runner.state.slurm import NoAnswer

ACCOUNTING_DELAY = timedelta(minutes=2)  # after sbatch, until accounting must know the job


def reconciled(root: Path, study: str | None = None) -> list[RunState]:
    """Return all runs, after repairing orphans and recording in the ledgers which attempts ended silently.

    While Slurm cannot be reached, or nothing can be written, a warning says so, and runs are as their files
    show them.
    """
    return reconciled_runs(list(run_folders(root, study)))


def reconciled_runs(folders: Sequence[RunFolder]) -> list[RunState]:
    """The same for the runs in these folders alone."""
    found = states_of(folders)
    try:
        if repair(found):
            found = states_of(folders)
        return states_of(folders) if _settle(found) else found
    except NoAnswer as error:
        warn_once(f"{error}; until Slurm answers, its runs are shown as last known")
    except UserError as error:  # the disk may be full, which `gc` can mend
        warn_once(f"{error}; until that can be done, runs are shown as last known")
    return states_of(folders)


def waits_for(states: Sequence[RunState]) -> dict[str, str]:
    """By job id, why queued runs have not started, in Slurm's words. Nothing while it does not say."""
    try:
        return waiting({state.job_id for state in states if state.phase == "queued" and state.job_id})
    except NoAnswer:
        return {}


def _settle(found: list[RunState]) -> bool:
    """Record how jobs ended, in the ledgers of their runs; returns whether any has. Raises NoAnswer."""
    in_doubt = list(recordable(state for state in found if _in_doubt(state) and state.job_id))
    said = poll(map(job_of, in_doubt))
    if said.problem:
        warn_once(f"{said.problem}: cannot tell how jobs ended until it answers again")
    endings = [(state, ending) for state in in_doubt if (ending := _ending(state, said))]
    for state, ending in endings:
        ledger.ended(state.folder, state.attempt, ending)
    return bool(endings)


def _in_doubt(state: RunState) -> bool:
    """Whether Slurm must be asked: in flight, or stopped by a signal whose cause only Slurm knows."""
    return state.in_flight or (state.outcome is Outcome.CANCELLED and not state.event("ended"))


def _ending(state: RunState, said: Poll) -> Ending | None:
    job_id = state.job_id
    assert job_id
    ending = said.endings.get(job_id)
    if ending is None and (job_id in said.alive or not said.complete or _fresh(state)):
        return None
    if ending:
        return culprit.true_of(ending, state.folder, state.attempt)
    # Read again: it may have ended after its state was read, and before Slurm was asked.
    result = state.folder.attempt(state.attempt).result
    own = Ending(result.outcome, result.reason) if result else None
    other = " (another job has that number now)" if job_id in said.taken else ""
    lost = f"Slurm no longer knows job {job_id}{other}, and the attempt left no result"
    return own or Ending(Outcome.LOST, lost)


def _fresh(state: RunState) -> bool:
    """Whether the job is so new that accounting may not know it yet."""
    submitted = state.event("submitted")
    return submitted is not None and now() - submitted.time < ACCOUNTING_DELAY
