"""What a job asks of Slurm: when it ends, why it was restarted, and to be put back into the queue."""

from __future__ import annotations

import os
import time
from datetime import datetime
from pathlib import Path

from model.disk.record import Outcome
from runner.state.endings import Ending
from runner.state.slurm import SACCT_FIELDS, SchedulerError, ask, ending_of

KILL_SECONDS = 5.0  # before the time limit, when Slurm may begin to kill a job


def job_end() -> float | None:
    """When Slurm ends the job that this process is in, by time.monotonic(); None without a limit."""
    job_id = os.environ.get("SLURM_JOB_ID")
    if not job_id:
        return None
    given = os.environ.get("SLURM_JOB_END_TIME")
    end = float(given) if given else _ask_end(job_id)
    return None if end is None else time.monotonic() + end - time.time()


def _ask_end(job_id: str) -> float | None:
    """The job's end from the controller: older versions of Slurm do not put it into the environment."""
    try:
        return datetime.fromisoformat(ask("squeue", "-h", "-j", job_id, "-o", "%e").split()[0]).timestamp()
    except (SchedulerError, IndexError, ValueError):
        return None  # no limit, or no Slurm command inside a container: the grace signal is all there is


def ending_before_restart(job_id: str | None) -> Ending:
    """Why Slurm put this job back into the queue, asked after it has started the job again."""
    try:
        lines = ask("sacct", "-D", "-X", "-n", "-P", "-j", job_id or "", "-o", SACCT_FIELDS).splitlines()
        said = [tuple(line.split("|")[1:]) for line in lines if line.startswith(f"{job_id}|")]
        # Whatever has ended came before: accounting may not know yet that the job runs again.
        earlier = [ending for words in said if (ending := ending_of(*words))]
    except SchedulerError:  # no accounting on the node
        earlier = []
    return earlier[-1] if earlier else Ending(Outcome.LOST, "Slurm put the job back into the queue")


def requeue(marks: Path) -> None:
    """Put the job that this process is in back into the queue. Slurm then ends this process.

    Of the runs that share a job the first one does so for all: a second request could hit the job when it
    runs again.

    Args:
        marks: a folder that the runs have in common.

    Raises:
        SchedulerError: scontrol is not installed or refuses.
    """
    mark = marks / f"{os.environ['SLURM_JOB_ID']}_requeued.{os.environ.get('SLURM_RESTART_COUNT', '0')}"
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    try:
        ask("scontrol", "requeue", f"{array}_{task}" if array and task else os.environ["SLURM_JOB_ID"])
    except SchedulerError:
        mark.unlink()
        raise
