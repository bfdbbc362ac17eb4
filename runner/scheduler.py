"""What Slurm says of its jobs: one batched question to sacct, and to squeue for what sacct does not know."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable

from runner.errors import SchedulerError
from runner.outcomes import Ending, of_slurm

TIMEOUT_SECONDS = 60


def require(command: str) -> None:
    """Make sure that one of Slurm's commands is there. Raises SchedulerError."""
    if not shutil.which(command):
        where = "run this on a login node of the cluster, or use --profile local"
        raise SchedulerError(f"{command} is not on PATH: {where}")


def ask(*command: str) -> str:
    """Run one of Slurm's commands and give its standard output.

    Raises:
        SchedulerError: it is not installed, fails, or does not answer; the text has its own words.
    """
    require(command[0])
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
    answer = ask("sacct", "-n", "-P", "-j", arrays, "-o", "JobID,State,ExitCode")
    found = {job_id: of_slurm(*state) for job_id, state in _states(answer).items() if job_id in wanted}
    return {job_id: ending for job_id, ending in found.items() if ending}


def _states(answer: str) -> dict[str, tuple[str, str]]:
    """State and exit code by job, from sacct's lines for jobs and their steps.

    A job whose step ran out of memory is FAILED to Slurm, because its script gave an exit code.
    """
    states: dict[str, tuple[str, str]] = {}
    for job, state, code in (line.split("|") for line in answer.splitlines() if line):
        job_id, _, step = job.partition(".")
        for element in _elements(job_id):
            if not step:
                states.setdefault(element, (state, code))
            elif state == "OUT_OF_MEMORY" and states.get(element, ("", ""))[0] == "FAILED":
                states[element] = (state, code)
    return states


def _elements(job_id: str) -> list[str]:
    """`12_[0-2,5%4]`, as waiting elements of an array are shown, to `12_0`, `12_1`, `12_2`, `12_5`."""
    array, bracket, ranges = job_id.partition("_[")
    if not bracket:
        return [job_id]
    parts = [part.split("-") for part in ranges.rstrip("]").partition("%")[0].split(",")]
    return [f"{array}_{index}" for part in parts for index in range(int(part[0]), int(part[-1]) + 1)]


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
