"""The launcher's questions to Slurm. Each is one command for any number of jobs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from datetime import datetime, timedelta

from runner.state.endings import Ending
from runner.state.slurm import MAY_COME_BACK, SACCT_FIELDS, SchedulerError, ask, ending_of, run


class Poll:
    """Slurm's word on some jobs, at one moment.

    Attributes:
        endings: how those ended that have, by job id.
        alive: those that have not.
        complete: whether Slurm answered in full; if not, a job that is in neither set is unknown, not gone.
        problem: what it said instead.
    """

    def __init__(self, endings: dict[str, Ending], alive: set[str], problem: str | None = None) -> None:
        self.endings, self.alive, self.problem = endings, alive, problem

    @property
    def complete(self) -> bool:
        """Whether Slurm answered in full."""
        return self.problem is None


def poll(job_ids: Iterable[str]) -> Poll:
    """Ask accounting, and the controller about those of which accounting may not have heard the last word.

    For some seconds a job that is back in the queue is NODE_FAIL or PREEMPTED to accounting, and one that was
    submitted while accounting was down is unknown to it: only the controller knows that they live.

    Args:
        job_ids: `ID`, or `ID_INDEX` for an element of an array.

    Raises:
        SchedulerError: neither answers.
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
    """Ids of the jobs that the controller remembers, and of those of them that have not ended."""
    answer = ask("squeue", "-h", "-r", "-t", "all", "-o", "%i|%T")
    lines = (line.split("|") for line in answer.splitlines() if line)
    states = {job_id: ending_of(state, "") for job_id, state in lines}
    return set(states), {job_id for job_id, ending in states.items() if ending is None}


def find(names: Iterable[str], since: datetime) -> dict[str, str]:
    """Ids of jobs and arrays by their names, for submissions whose launcher died before it could note them.

    Raises:
        SchedulerError: accounting or the controller does not answer; then nothing can be said of them.
    """
    wanted = set(names)
    start = (since.astimezone() - timedelta(days=1)).strftime("%Y-%m-%dT%H:%M:%S")
    known = ask("sacct", "-X", "-n", "-P", f"--name={','.join(wanted)}", "-S", start, "-o", "JobID,JobName")
    queued = ask("squeue", "-h", f"--name={','.join(wanted)}", "-o", "%F|%j")
    lines = (line.split("|") for line in (known + queued).splitlines() if line)
    return {name: job_id.partition("_")[0] for job_id, name in lines if name in wanted}


def _states(answer: str) -> dict[str, tuple[str, str, str]]:
    """State, exit code and node by job, from sacct's lines for jobs and their steps.

    A job whose step ran out of memory is FAILED to Slurm, because its script gave an exit code.
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
    """`12_[0-2,5%4]`, as waiting elements of an array are shown, to `12_0`, `12_1`, `12_2`, `12_5`."""
    array, bracket, ranges = job_id.partition("_[")
    if not bracket:
        return [job_id]
    parts = [part.split("-") for part in ranges.rstrip("]").partition("%")[0].split(",")]
    return [f"{array}_{index}" for part in parts for index in range(int(part[0]), int(part[-1]) + 1)]


def queued(partition: str | None) -> int:
    """Jobs of this user in Slurm's queue, an array's elements one by one. Raises SchedulerError."""
    place = ["--partition", partition] if partition else []
    return len(ask("squeue", "-h", "-r", "--user", str(os.getuid()), *place, "-o", "%i").splitlines())


def cancel(job_ids: Iterable[str]) -> None:
    """Cancel jobs. Raises SchedulerError."""
    wanted = sorted(set(job_ids))
    for start in range(0, len(wanted), 1000):  # a command line has its limits
        ask("scancel", *wanted[start : start + 1000])


def max_array_size() -> int:
    """Slurm's MaxArraySize: an array's indices lie below it. Raises SchedulerError."""
    for line in ask("scontrol", "show", "config").splitlines():
        name, _, value = line.partition("=")
        if name.strip() == "MaxArraySize":
            return int(value)
    return 1001


def expected_start(script: str) -> str | None:
    """When Slurm expects a batch script's first job to start if it is submitted now; None if it won't say.

    Raises:
        SchedulerError: it would be refused, or Slurm cannot be asked; the text has its own words.
    """
    done = run("sbatch", "--test-only", given=script)
    if done.returncode:
        said = "; ".join(line.strip() for line in done.stderr.splitlines() if line.strip())
        raise SchedulerError(said or f"sbatch --test-only: exit code {done.returncode}")
    match = re.search(r"to start at (\S+)", done.stderr)
    return match[1] if match else None
