"""What Slurm says of its jobs: one batched question to sacct, and to squeue for what sacct does not know."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable

from runner.errors import SchedulerError
from runner.outcomes import Ending, of_slurm

TIMEOUT_SECONDS = 60


def ask(*command: str) -> str:
    """Run one of Slurm's commands and give its standard output.

    Raises:
        SchedulerError: it is not installed, fails, or does not answer; the text has its own words.
    """
    if not shutil.which(command[0]):
        raise SchedulerError(
            f"{command[0]} is not on PATH: run this on a login node of the cluster, or use --profile local"
        )
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise SchedulerError(f"{command[0]} did not answer in {TIMEOUT_SECONDS} s") from error
    if done.returncode:
        raise SchedulerError(f"{command[0]}: {done.stderr.strip() or f'exit code {done.returncode}'}")
    return done.stdout


def endings(job_ids: Iterable[str]) -> dict[str, Ending]:
    """How each of these jobs ended; a job that has not ended, or that nobody knows, is absent.

    Args:
        job_ids: `ID`, or `ID_INDEX` for an element of an array.
    """
    wanted = set(job_ids)
    if not wanted:
        return {}
    arrays = ",".join(sorted({job_id.partition("_")[0] for job_id in wanted}))
    lines = ask("sacct", "-X", "-n", "-P", "-j", arrays, "-o", "JobID,State,ExitCode").splitlines()
    states = {job_id: (state, code) for job_id, state, code in (line.split("|") for line in lines if line)}
    found = {job_id: of_slurm(*states[job_id]) for job_id in wanted if job_id in states}
    return {job_id: ending for job_id, ending in found.items() if ending}


def cancel(job_ids: Iterable[str]) -> None:
    """Cancel jobs. Raises SchedulerError."""
    if wanted := sorted(set(job_ids)):
        ask("scancel", *wanted)


def max_array_size() -> int:
    """Slurm's MaxArraySize: an array's indices lie below it. Raises SchedulerError."""
    for line in ask("scontrol", "show", "config").splitlines():
        name, _, value = line.partition("=")
        if name.strip() == "MaxArraySize":
            return int(value)
    return 1001
