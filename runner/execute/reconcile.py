"""Determines the status of every run: asks the scheduler, and repairs what dead launchers left behind."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import timedelta
from pathlib import Path

from model.record.errors import UserError
from model.record.folder import RunFolder, run_folders
from model.record.outcome import Outcome
from model.record.records import now
from runner.execute.repair import by_name, last_sign, repair
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
    """Record how jobs ended, in the ledgers of their runs; returns whether anything was. Raises NoAnswer."""
    in_doubt = list(recordable(state for state in found if _in_doubt(state) and state.job_id))
    said = poll(map(job_of, in_doubt))
    if said.problem:
        warn_once(f"{said.problem}: cannot tell how jobs ended until it answers again")
    told = {state.job_id: ending for state in in_doubt if (ending := said.endings.get(state.job_id or ""))}
    for state in in_doubt:
        if ending := told.get(state.job_id):
            ledger.ended(state.folder, state.attempt, culprit.true_of(ending, state.folder, state.attempt))
    unknown = [state for state in in_doubt if _unknown(state, said)]
    elsewhere = _by_name(unknown)
    for state in unknown:
        if (job_id := elsewhere.get(state.folder.path)) and job_id != state.job_id:
            ledger.submitted(state.folder, state.attempt, job_id)
        else:
            # Read again: it may have ended after its state was read, and before Slurm was asked.
            result = state.folder.attempt(state.attempt).result
            own = Ending(result.outcome, result.reason) if result else None
            ledger.ended(state.folder, state.attempt, own or _lost(state, said))
    return bool(told or unknown)


def _by_name(unknown: Iterable[RunState]) -> dict[Path, str]:
    """Jobs by the names of their arrays: a number that Slurm does not know may have been noted wrongly."""
    owners = defaultdict(list)
    for state in unknown:
        owners[_owner(state)].append(state)
    found = [by_name(states, owner) for owner, states in owners.items()]
    return {path: job_id for jobs in found for path, job_id in jobs.items()}


def _owner(state: RunState) -> int:
    """Id of the user who submitted a run's latest attempt."""
    assert state.latest
    return state.latest.path.stat().st_uid


def _in_doubt(state: RunState) -> bool:
    """Whether Slurm must be asked: in flight, or stopped by a signal whose cause only Slurm knows."""
    return state.in_flight or (state.outcome is Outcome.CANCELLED and not state.event("ended"))


def _unknown(state: RunState, said: Poll) -> bool:
    """Whether Slurm does not know a run's job, and should.

    It may hide the jobs of other users. One that goes on for accounting alone may have ended a moment ago, or
    its node may be out of the controller's reach: it counts as long as it writes.
    """
    job_id = state.job_id
    assert job_id and state.latest
    if job_id in said.endings or job_id in said.alive or not said.complete or _fresh(state):
        return False
    if job_id in said.runaway and now() - last_sign(state.latest) < ACCOUNTING_DELAY:
        return False
    return os.getuid() in (0, _owner(state))


def _lost(state: RunState, said: Poll) -> Ending:
    lacks = "and the attempt left no result"
    if state.job_id in said.runaway:
        only = f"job {state.job_id} goes on in Slurm's accounting alone: its controller does not know it"
        return Ending(Outcome.LOST, f"{only}, {lacks}")
    other = " (another job has that number now)" if state.job_id in said.taken else ""
    return Ending(Outcome.LOST, f"Slurm no longer knows job {state.job_id}{other}, {lacks}")


def _fresh(state: RunState) -> bool:
    """Whether the job is so new that accounting may not know it yet."""
    submitted = state.event("submitted")
    return submitted is not None and now() - submitted.time < ACCOUNTING_DELAY
