"""The launcher's queries to Slurm. Each is one command for any number of jobs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from datetime import datetime, timedelta

from runner.state.endings import Ending
from runner.state.slurm import MAY_COME_BACK, SACCT_FIELDS, SchedulerError, ask, ending_of, run


class Poll:
    """Slurm's answer about some jobs at one moment.

    Attributes:
        endings: endings of the jobs that have ended, by job id.
        alive: ids of the jobs that have not.
        complete: whether Slurm answered in full; if not, a job in neither set is unknown, not lost.
        problem: Slurm's error message, if any.
    """

    def __init__(self, endings: dict[str, Ending], alive: set[str], problem: str | None = None) -> None:
        self.endings, self.alive, self.problem = endings, alive, problem

    @property
    def complete(self) -> bool:
        """Whether accounting, and the controller where needed, both answered."""
        return self.problem is None


def poll(job_ids: Iterable[str]) -> Poll:
    """Ask accounting about jobs, and the controller where accounting may be out of date.

    For some seconds after a requeue, accounting still reports a job as NODE_FAIL or PREEMPTED, and it does
    not know a job that was submitted while it was down: only the controller knows that these jobs are alive.

    Args:
        job_ids: `ID`, or `ID_INDEX` for an array element.

    Raises:
        SchedulerError: neither accounting nor the controller answers.
    """
    wanted = set(job_ids)
    if not wanted:
        return Poll({}, set())
    arrays = ",".join(sorted({job_id.partition("_")[0] for job_id in wanted}))
    try:
        answer = ask("sacct", "-n", "-P", "-j", arrays, "-o", SACCT_FIELDS)
    except SchedulerError as error:
        return Poll({}, wanted & _queue()[1], str(error))
    found = {job_id: ending_of(*state) for job_id, state in _states(answer).items() if job_id in wanted}
    ended = {job_id: ending for job_id, ending in found.items() if ending}
    doubtful = {job_id for job_id, ending in ended.items() if ending.outcome in MAY_COME_BACK}
    alive, problem = set(found) - set(ended), None
    if doubtful or len(found) < len(wanted):
        try:
            known, queued = _queue()
            doubtful &= queued
            alive |= doubtful | (known & wanted - set(found))
        except SchedulerError as error:
            problem = str(error)
    return Poll({job: ending for job, ending in ended.items() if job not in doubtful}, alive, problem)


def _queue() -> tuple[set[str], set[str]]:
    """Ids of all jobs that the controller knows, and of those among them that have not ended."""
    answer = ask("squeue", "-h", "-r", "-t", "all", "-o", "%i|%T")
    lines = (line.split("|") for line in answer.splitlines() if line)
    states = {job_id: ending_of(state, "") for job_id, state in lines}
    return set(states), {job_id for job_id, ending in states.items() if ending is None}


def find(names: Iterable[str], since: datetime) -> dict[str, str]:
    """Ids of jobs and arrays by name, for launchers that died before they could record them.

    Raises:
        SchedulerError: accounting or the controller does not answer, so a missing job proves nothing.
    """
    wanted = set(names)
    start = (since.astimezone() - timedelta(days=1)).strftime("%Y-%m-%dT%H:%M:%S")
    known = ask("sacct", "-X", "-n", "-P", f"--name={','.join(wanted)}", "-S", start, "-o", "JobID,JobName")
    queued = ask("squeue", "-h", f"--name={','.join(wanted)}", "-o", "%F|%j")
    lines = (line.split("|") for line in (known + queued).splitlines() if line)
    return {name: job_id.partition("_")[0] for job_id, name in lines if name in wanted}


def _states(answer: str) -> dict[str, tuple[str, str, str]]:
    """State, exit code and node by job, from sacct's lines for jobs and their steps.

    Slurm reports FAILED for a job whose step ran out of memory, because its script returned an exit code.
    """
    states: dict[str, tuple[str, str, str]] = {}
    for job, state, code, node in (line.split("|") for line in answer.splitlines() if line):
        job_id, _, step = job.partition(".")
        for element in _elements(job_id):
            if not step:
                states.setdefault(element, (state, code, node))
            elif state == "OUT_OF_MEMORY" and states.get(element, ("",))[0] == "FAILED":
                states[element] = (state, code, node)
    return states


def _elements(job_id: str) -> list[str]:
    """Expand `12_[0-2,5%4]`, Slurm's form for pending array elements, to `12_0`, `12_1`, `12_2`, `12_5`."""
    array, bracket, ranges = job_id.partition("_[")
    if not bracket:
        return [job_id]
    parts = [part.split("-") for part in ranges.rstrip("]").partition("%")[0].split(",")]
    return [f"{array}_{index}" for part in parts for index in range(int(part[0]), int(part[-1]) + 1)]


def queued(partition: str | None) -> int:
    """Number of this user's jobs in Slurm's queue; each array element counts. Raises SchedulerError."""
    place = ["--partition", partition] if partition else []
    return len(ask("squeue", "-h", "-r", "--user", str(os.getuid()), *place, "-o", "%i").splitlines())


def cancel(job_ids: Iterable[str]) -> None:
    """Cancel jobs and array elements by id. Raises SchedulerError."""
    wanted = sorted(set(job_ids))
    for start in range(0, len(wanted), 1000):  # command lines have a maximum length
        ask("scancel", *wanted[start : start + 1000])


def max_array_size() -> int:
    """Slurm's MaxArraySize, which array indices must stay below. Raises SchedulerError."""
    for line in ask("scontrol", "show", "config").splitlines():
        name, _, value = line.partition("=")
        if name.strip() == "MaxArraySize":
            return int(value)
    return 1001


def expected_start(script: str) -> str | None:
    """Slurm's estimate of when a batch script's first job would start if submitted now; None if unknown.

    Raises:
        SchedulerError: the script would be refused, or Slurm cannot be reached; the message quotes it.
    """
    done = run("sbatch", "--test-only", given=script)
    if done.returncode:
        said = "; ".join(line.strip() for line in done.stderr.splitlines() if line.strip())
        raise SchedulerError(said or f"sbatch --test-only: exit code {done.returncode}")
    match = re.search(r"to start at (\S+)", done.stderr)
    return match[1] if match else None
