"""The Slurm executor: one job array, through submitit."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from model.record import Outcome
from runner import ledger, scheduler
from runner.cluster import Profile
from runner.errors import SchedulerError
from runner.job import run_attempt
from runner.outcomes import Ending
from runner.tasks import Task

if TYPE_CHECKING:
    from submitit import SlurmExecutor


def submit(tasks: Sequence[Task], profile: Profile, folder: Path, name: str) -> None:
    """Submit claimed attempts as job arrays, and note each one's job id.

    Args:
        folder: for submitit's files; on a filesystem that the nodes share.
        name: the jobs' name.

    Raises:
        SchedulerError: sbatch refused or is not there. What was not submitted is noted as cancelled.
    """
    left = list(tasks)
    try:
        executor = _executor(profile, folder, name)
        chunk = scheduler.max_array_size()
        while left:
            now = left[:chunk]
            paths = [str(task.folder.path) for task in now]
            jobs = executor.map_array(run_in_job, paths, [task.attempt for task in now])
            for task, job in zip(now, jobs, strict=True):
                ledger.submitted(task.folder, task.attempt, job.job_id)
            left = left[chunk:]
    except Exception as error:
        for task in left:
            ledger.ended(task.folder, task.attempt, Ending(Outcome.CANCELLED, f"not submitted: {error}"))
        raise SchedulerError(_words(error)) from error


def script(profile: Profile, folder: Path, name: str, count: int) -> str:
    """The batch script that `submit` would pass to sbatch for so many runs. Needs no Slurm."""
    from submitit.slurm import slurm

    command = f"{_python(profile)} -u -m submitit.core._submit {shlex.quote(str(folder))}"
    parameters = _parameters(profile, name) | ({"map_count": count} if count > 1 else {})
    return slurm._make_sbatch_string(command=command, folder=folder, **parameters)


def run_in_job(run_folder: str, attempt: int) -> str:
    """Run one attempt inside a Slurm job, its output in the attempt's folder."""
    folder = Path(run_folder) / f"attempt-{attempt}"
    for descriptor, name in ((1, "stdout.log"), (2, "stderr.log")):
        file = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(file, descriptor)
        os.close(file)
    return run_attempt(run_folder, attempt)


def _executor(profile: Profile, folder: Path, name: str) -> SlurmExecutor:
    from submitit import SlurmExecutor

    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    executor = SlurmExecutor(folder=folder, python=_python(profile))
    executor.update_parameters(**_parameters(profile, name))
    return executor


def _python(profile: Profile) -> str:
    # -P keeps the working directory off sys.path: a stray model.py there must not shadow ours.
    return f"{shlex.quote(profile.python or sys.executable)} -P"


def _parameters(profile: Profile, name: str) -> dict[str, Any]:
    slurm = profile.slurm
    assert slurm
    memory, seconds = profile.memory_bytes, profile.time_limit_seconds
    asked: dict[str, Any] = {
        "job_name": name,
        "time": -(-seconds // 60) if seconds else None,  # minutes, rounded up
        "mem": f"{memory // 2**20}M" if memory and slurm.ask_memory else None,
        "cpus_per_task": profile.cpus,
        "gpus_per_node": profile.gpus if profile.gpus and not slurm.gres else None,
        "partition": slurm.partition,
        "account": slurm.account,
        "qos": slurm.qos,
        "constraint": slurm.constraint,
        "gres": slurm.gres,
        "exclusive": slurm.exclusive or None,
        "array_parallelism": profile.max_parallel,
        "srun_args": slurm.srun_args,
        "setup": [
            *slurm.setup,
            *(f"export {key}={shlex.quote(value)}" for key, value in profile.env.items()),
        ],
        "additional_parameters": {
            **({"reservation": slurm.reservation} if slurm.reservation else {}),
            **slurm.options,
        },
    }
    given = {key: value for key, value in asked.items() if value is not None}
    return {**given, "wckey": None}  # submitit's default is refused where wckeys are tracked


def _words(error: Exception) -> str:
    lines = (
        [line for line in str(error).splitlines() if "sbatch" in line]
        or str(error).splitlines()
        or [type(error).__name__]
    )
    return lines[-1]
