"""Where a Slurm job enters: which attempt this task works on, with its output in the attempt's folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from model.disk.folder import RunFolder
from model.disk.record import Outcome
from runner.job.attempt import run_attempt, withdrawn
from runner.job.slurm import ending_before_restart
from runner.state import ledger

# How an attempt ends that Slurm's requeue, or the time limit, has stopped.
STOPPED = frozenset({Outcome.CANCELLED, Outcome.TIMEOUT, Outcome.PREEMPTED, Outcome.NODE_FAILED})


def run_in_job(run_folders: Sequence[str], attempts: Sequence[int]) -> str:
    """Run the attempt of this task's slot inside a Slurm job.

    Submitit pickles a reference to this function by name, with folders and numbers alone, so that code that
    is edited before the job starts cannot change what was planned.
    """
    slot = int(os.environ.get("SLURM_LOCALID", "0"))
    members = [(RunFolder(Path(path)), number) for path, number in zip(run_folders, attempts, strict=True)]
    if slot >= len(members):
        return "unused slot"
    run, number = members.pop(slot)
    attempt: int | None = number
    if int(os.environ.get("SLURM_RESTART_COUNT", "0")):
        attempt = attempt_of_restart(run, number)
    if attempt is None or withdrawn(run.attempt(attempt)):
        return "nothing left to do"
    for descriptor, log in ((1, "stdout.log"), (2, "stderr.log")):
        file = os.open(run.attempt(attempt).path / log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(file, descriptor)
        os.close(file)
    return run_attempt(run, attempt, [fellow for fellow, _ in members])


def attempt_of_restart(folder: RunFolder, number: int) -> int | None:
    """The attempt that a job which Slurm has started again works on; None where there is nothing left for it.

    It is the one that was claimed when the job put itself back into the queue; where Slurm did so, for a
    failed node or a preemption, a new one. A run that was stopped, and did not end, goes on.
    """
    newest, state = folder.attempts()[-1], ledger.state(folder)
    job_id = folder.attempt(number).job_id or os.environ.get("SLURM_JOB_ID", "")
    if state.outcome is Outcome.COMPLETED or (newest.number != number and newest.job_id != job_id):
        return None  # done, or another job's
    if newest.manifest is None:
        return newest.number
    if not state.in_flight and (state.outcome not in STOPPED or withdrawn(newest)):
        return None
    if state.in_flight:
        ledger.ended(folder, newest.number, ending_before_restart(state.job_id))
    again = newest.number + 1
    if not ledger.claim(folder, again, "slurm"):
        return None
    ledger.submitted(folder, again, job_id)
    return again
