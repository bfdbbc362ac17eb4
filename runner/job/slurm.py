"""A job's requests to Slurm: when its time limit ends, why it was restarted, and to requeue it."""

from __future__ import annotations

import os
import re
import time
from datetime import datetime
from pathlib import Path

from model.disk.folder import Attempt, RunFolder
from model.disk.record import Outcome
from runner.state import culprit, slurm
from runner.state.endings import Ending
from runner.state.slurm import SchedulerError, ask, ending_of

_FACT = re.compile(r"(\w+)=(\S+)")
KILL_SECONDS = 5.0  # before the time limit; Slurm may start killing the job here


def nodes_of_job() -> int:
    """How many nodes this process's job has."""
    return int(os.environ.get("SLURM_JOB_NUM_NODES", "1"))


def job_end() -> float | None:
    """When Slurm will end this process's job, on the time.monotonic() clock; None without a limit.

    If that time has passed, the job is not this process's: after `salloc`, a shell keeps an ended job's
    variables.
    """
    job_id = os.environ.get("SLURM_JOB_ID")
    if not job_id:
        return None
    try:
        end: float | None = float(os.environ.get("SLURM_JOB_END_TIME", ""))
    except ValueError:
        end = _ask_end(job_id)
    return None if end is None or end <= time.time() else time.monotonic() + end - time.time()


def _ask_end(job_id: str) -> float | None:
    """The job's end as Unix time, from squeue: older Slurm versions do not set it in the environment.

    The last element of an array has the array's number, for which squeue shows all elements, also those that
    are ending, whose end is in the past.
    """
    try:
        shown = dict(line.split() for line in ask("squeue", "-h", "-j", job_id, "-o", "%A %e").splitlines())
        return datetime.fromisoformat(shown[job_id]).timestamp()
    except (SchedulerError, KeyError, ValueError):
        return None  # no limit, or no Slurm commands inside the container


def ending_before_restart(folder: RunFolder, attempt: Attempt) -> Ending:
    """How the previous attempt of a requeued job ended, from sacct and from its own result."""
    ending, own = _accounted(attempt.job_id), attempt.result
    if own and ending.outcome is Outcome.LOST:
        return Ending(own.outcome, f"{own.reason} ({ending.reason})")
    return culprit.true_of(ending, folder, attempt.number)


def _accounted(job_id: str | None) -> Ending:
    """How the job's previous start ended, according to accounting."""
    name = os.environ.get("SLURM_JOB_NAME")
    ours = [f"--name={name}"] if name else []  # an older job may have had the same number
    try:
        rows = slurm.sacct(slurm.JOB, "-D", "-X", *ours, "-j", job_id or "")
    except SchedulerError as error:  # no accounting on the node
        return Ending(Outcome.LOST, f"Slurm requeued the job, and its accounting does not say why: {error}")
    said = [row[1:4] for row in rows if row[0] == job_id]
    # Every ended entry is an earlier start: accounting may not list the current one yet.
    earlier = [ending for state, code, node in said if (ending := ending_of(state, code, node))]
    return earlier[-1] if earlier else Ending(Outcome.LOST, "Slurm requeued the job")


def is_over(local_id: int) -> bool:
    """Whether a task of this job step, on this node, has ended; False if Slurm does not say.

    The node's own daemon answers with the tasks that have not ended, including this one.
    """
    job, step = (os.environ.get(name) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    try:
        shown = ask("scontrol", "listpids", f"{job}.{step}", os.environ.get("SLURMD_NODENAME", ""))
    except SchedulerError:  # no Slurm commands inside the container
        return False
    there = {fields[3] for line in shown.splitlines()[1:] if len(fields := line.split()) > 3}
    return os.environ.get("SLURM_LOCALID") in there and str(local_id) not in there


def is_preempted() -> bool:
    """Whether Slurm has told this process's job to end within its GraceTime, for a job that comes first.

    Slurm takes a job that does so for completed, and neither requeues it nor calls it preempted.
    """
    if "SLURM_JOB_ID" not in os.environ:
        return False
    try:
        said = dict(_FACT.findall(ask("scontrol", "-o", "show", "job", _job())))
    except SchedulerError:  # no Slurm commands inside the container
        return False
    told, started = said.get("PreemptTime", ""), said.get("StartTime", "")
    return said.get("JobState") == "RUNNING" and told[:1].isdigit() and told >= started


def _job() -> str:
    """This process's job; the last element of an array has the array's number, and needs its own index."""
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else os.environ["SLURM_JOB_ID"]


def requeue(marks: Path) -> None:
    """Requeue this process's job. Slurm then ends this process.

    If several runs share the job, only the first sends the request: a second one could arrive after the job
    has restarted.

    Args:
        marks: a folder shared by the runs, for the file that marks the request.

    Raises:
        SchedulerError: scontrol is not installed or refuses.
    """
    mark = marks / f"{os.environ['SLURM_JOB_ID']}_requeued.{os.environ.get('SLURM_RESTART_COUNT', '0')}"
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return
    try:
        ask("scontrol", "requeue", _job())
    except SchedulerError:
        mark.unlink()
        raise
