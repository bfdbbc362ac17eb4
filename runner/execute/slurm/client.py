"""The launcher's queries to Slurm. Each is one command for hundreds of jobs."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from runner.execute.slurm.ours import Job
from runner.state import slurm
from runner.state.endings import Ending
from runner.state.slurm import (
    MAY_COME_BACK,
    NoAnswer,
    SchedulerError,
    ask,
    ending_of,
    run,
    words,
)

CALL = 500  # ids or names a call: command lines have a maximum length
_ENDED = re.compile("already completing or completed|Invalid job id")
_EXIT = re.compile(r"\b(JobId|ArrayJobId|ArrayTaskId|ExitCode)=(\S+)")


class Poll:
    """Slurm's answer about some jobs at one moment.

    Attributes:
        endings: endings of the jobs that have ended, by job id.
        alive: ids of the jobs that have not.
        taken: ids that Slurm has given to other jobs, and that are not in the other two.
        problem: Slurm's error message, if any.
    """

    def __init__(
        self,
        endings: dict[str, Ending],
        alive: set[str],
        taken: Collection[str] = (),
        problem: str | None = None,
    ) -> None:
        self.endings, self.alive, self.problem = endings, alive, problem
        self.taken = set(taken) - alive - set(endings)

    @property
    def complete(self) -> bool:
        """Whether Slurm answered in full; if not, a job in neither set is unknown, not lost."""
        return self.problem is None


class _Sight(NamedTuple):
    """A job as a command of Slurm shows it.

    Attributes:
        open: whether it failed while one of its steps has not ended, which may still tell why.
    """

    state: str
    exit_code: str
    node: str
    submitted: str
    name: str
    open: bool

    @property
    def ending(self) -> Ending | None:
        return ending_of(self.state, self.exit_code, self.node)


class _Jobs:
    """What one source shows of the jobs asked about: our jobs, and ids that other jobs have now."""

    def __init__(self, wanted: Mapping[str, Job], shown: Mapping[str, _Sight]) -> None:
        known = {job_id: sight for job_id in wanted if (sight := _of(job_id, shown))}
        self.ours = {id_: job for id_, job in known.items() if wanted[id_].is_(job.name, job.submitted)}
        self.taken = set(known) - set(self.ours)
        endings = {job_id: job.ending for job_id, job in self.ours.items()}
        self.endings = {job_id: ending for job_id, ending in endings.items() if ending}
        self.alive = set(self.ours) - set(self.endings)


def _of(job_id: str, shown: Mapping[str, _Sight]) -> _Sight | None:
    """What is shown of a job, or of its array if the job has not run.

    Slurm keeps no record of an array element that is cancelled before it starts; once none is left to start,
    it shows the array itself as cancelled. But the last element to start takes over the array's record, which
    is shown for a moment under the array's number, with a node.
    """
    array = shown.get(job_id.partition("_")[0])
    return shown.get(job_id) or (array if array and not slurm.placed(array.node) else None)


def poll(jobs: Iterable[Job]) -> Poll:
    """Ask accounting about jobs, and the controller where accounting may be out of date.

    For some seconds after a requeue, accounting still reports a job as NODE_FAIL or PREEMPTED, and it does
    not know a job that was submitted while it was down: only the controller knows that these jobs are alive.
    Accounting can learn of the end of a step after that of its job: until then, the job counts as not ended
    for as long as the controller knows it.

    Raises:
        NoAnswer: neither accounting nor the controller answers.
    """
    wanted = {job.job_id: job for job in jobs}
    if not wanted:
        return Poll({}, set())
    try:
        said = _Jobs(wanted, _accounting(wanted))
    except NoAnswer as error:
        return _without_accounting(wanted, str(error))
    back = {job_id for job_id, ending in said.endings.items() if ending.outcome in MAY_COME_BACK}
    untold = {job_id for job_id in said.endings if said.ours[job_id].open}
    doubtful = back | untold
    alive, taken, problem = said.alive, said.taken, None
    if doubtful or len(said.ours) < len(wanted):
        try:
            queue = _Jobs(wanted, _queue())
            doubtful = back & queue.alive | untold & set(queue.ours)
            alive = alive | doubtful | (set(queue.ours) - set(said.ours))
            taken = taken | queue.taken
        except NoAnswer as error:
            problem = str(error)
    ended = {job_id: ending for job_id, ending in said.endings.items() if job_id not in doubtful}
    return Poll(ended, alive, taken, problem)


def _without_accounting(wanted: Mapping[str, Job], problem: str) -> Poll:
    """The controller's answer. It remembers only for some minutes how jobs ended (MinJobAge).

    If the cluster has accounting, which does not answer at the moment, endings wait for it: the controller
    shows FAILED for a job whose step ran out of memory.
    """
    queue = _Jobs(wanted, _queue())
    if has_accounting():
        return Poll({}, queue.alive, queue.taken, problem)
    codes = _exit_codes(queue.endings)
    told = {job_id: job._replace(exit_code=codes.get(job_id, "")) for job_id, job in queue.ours.items()}
    return Poll(_Jobs(wanted, told).endings, queue.alive, queue.taken)


def has_accounting() -> bool:
    """Whether the cluster has accounting, as far as this machine can tell."""
    if not shutil.which("sacct"):
        return False
    try:
        return _configured("AccountingStorageType") not in ("", "(null)", "accounting_storage/none")
    except NoAnswer:
        return True


def _accounting(job_ids: Iterable[str]) -> dict[str, _Sight]:
    """What accounting knows of jobs and of all elements of their arrays. Raises NoAnswer."""
    shown: dict[str, _Sight] = {}
    for arrays in _calls({job_id.partition("_")[0] for job_id in job_ids}):
        shown |= _sights(slurm.sacct(slurm.JOB, "-j", arrays))
    return shown


def _sights(rows: Iterable[list[str]]) -> dict[str, _Sight]:
    """Jobs by id, from accounting's rows for jobs and their steps.

    Slurm reports FAILED for a job whose step ran out of memory or was cancelled, because its script returned
    an exit code. If srun itself ended a step, Slurm does not say who cancelled it.
    A range stands for elements that have not started, and its row may be older than theirs. A range with a
    node is the record of the array's last element, as `_of` describes, and says nothing about the others.
    """
    shown: dict[str, _Sight] = {}
    for job, *rest in sorted(rows, key=lambda row: "[" in row[0]):
        line, (job_id, _, step) = _Sight._make((*rest, False)), job.partition(".")
        if "[" in job and slurm.placed(line.node):
            continue
        for element in _elements(job_id):
            if not step:
                shown.setdefault(element, line)
            elif (of := shown.get(element)) and of.state == "FAILED":
                shown[element] = _with_step(of, line)
    return shown


def _with_step(failed: _Sight, step: _Sight) -> _Sight:
    if step.state == "OUT_OF_MEMORY" or step.state.startswith("CANCELLED by"):
        return failed._replace(state=step.state, exit_code=step.exit_code, open=False)
    return failed._replace(open=failed.open or step.state in slurm.ALIVE)


def _queue() -> dict[str, _Sight]:
    """All jobs that the controller knows, by id. Raises NoAnswer."""
    answer = _squeue("-r", "-o", slurm.BAR.join(["%i", "%T", "%N", "%V", "%j"]))
    return {job_id: _Sight._make((state, "", *rest, False)) for job_id, state, *rest in slurm.rows(answer, 5)}


def _exit_codes(job_ids: Iterable[str]) -> dict[str, str]:
    """The exit codes that the controller knows, by job."""
    codes: dict[str, str] = {}
    for array in sorted({job_id.partition("_")[0] for job_id in job_ids}):
        try:
            answer = ask("scontrol", "-o", "show", "job", array)
        except NoAnswer:  # it has forgotten the job since
            continue
        for line in answer.splitlines():
            facts: dict[str, str] = dict(_EXIT.findall(line))
            task, job = facts.get("ArrayTaskId"), facts.get("ArrayJobId") or facts.get("JobId", "")
            for element in _elements(f"{job}_[{task}]" if task else job):
                codes[element] = facts.get("ExitCode", "")
    return codes


def _squeue(*options: str) -> str:
    return ask("squeue", "-h", "-t", "all", *options)


def _calls(words: Iterable[str]) -> Iterator[str]:
    """The words joined by commas, at most CALL of them at a time."""
    ordered = sorted(words)
    return (",".join(ordered[start : start + CALL]) for start in range(0, len(ordered), CALL))


def find(names: Iterable[str], since: datetime, owner: int) -> dict[str, str]:
    """Ids of jobs and arrays by name, for launchers that died before they could record them.

    Args:
        owner: id of the user who submitted them; others can give their jobs the same names.

    Raises:
        NoAnswer: accounting or the controller does not answer, so a missing job proves nothing.
    """
    wanted = set(names)
    start = (since.astimezone() - timedelta(days=1)).strftime("%Y-%m-%dT%H:%M:%S")

    found = [row for some in _calls(wanted) for row in _named(some, start)]
    theirs = [(job_id, name) for user, job_id, name in found if user == str(owner)]
    return {name: job_id.partition("_")[0] for job_id, name in theirs if name in wanted}


def _named(names: str, start: str) -> list[list[str]]:
    """User, id and name of all jobs that accounting or the controller knows. Raises NoAnswer."""
    queued = slurm.rows(_squeue(f"--name={names}", "-o", slurm.BAR.join(["%U", "%F", "%j"])), 3)
    try:
        return queued + slurm.sacct("UID,JobID,JobName", "-X", f"--name={names}", "-S", start)
    except NoAnswer:
        if has_accounting():
            raise
        return queued  # the controller knows every job that has not ended


def _elements(job_id: str) -> list[str]:
    """Expand `12_[0-6:2,9%4]`, Slurm's form for pending array elements, to `12_0`, `12_2`, ... `12_9`."""
    array, bracket, ranges = job_id.partition("_[")
    if not bracket:
        return [job_id]
    spelled = ranges.rstrip("]").partition("%")[0].split(",")
    parts = [re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", part) for part in spelled]
    spans = [(int(part[1]), int(part[2] or part[1]), int(part[3] or 1)) for part in parts if part]
    return [f"{array}_{index}" for first, last, step in spans for index in range(first, last + 1, step)]


# Words of `squeue` for a job of more nodes, or of other ones, than the partition has.
_STUCK = frozenset({"PartitionConfig", "PartitionNodeLimit", "BadConstraints"})


def waiting(job_ids: Iterable[str]) -> dict[str, str]:
    """Why jobs have not started, in Slurm's words, such as `Priority`; without those it says nothing of.

    Raises:
        NoAnswer: Slurm cannot be reached, or has forgotten a job.
    """
    question = ["squeue", "-h", "-r", "-t", "PENDING", "-o", "%i %r", "-j"]
    said = [line.partition(" ") for some in _calls(job_ids) for line in ask(*question, some).splitlines()]
    return {job: why for job, _, why in said if why != "None"}


def stuck(job_ids: Iterable[str]) -> dict[str, str]:
    """Of jobs, those that Slurm will not start on the cluster as it is. Raises as `waiting`."""
    return {job: why for job, why in waiting(job_ids).items() if why in _STUCK}


def queued(partition: str | None) -> int:
    """Number of this user's jobs in Slurm's queue; each array element counts. Raises NoAnswer."""
    return len(_mine(*(["--partition", partition] if partition else [])))


def running() -> set[str]:
    """Ids of this user's jobs and array elements that have processes, stopped or not. Raises NoAnswer."""
    return set(_mine("-t", "RUNNING,SUSPENDED,STOPPED"))


def _mine(*options: str) -> list[str]:
    return ask("squeue", "-h", "-r", "--user", str(os.getuid()), *options, "-o", "%i").splitlines()


def cancel(jobs: Iterable[Job], saving: Collection[str] = ()) -> set[str]:
    """Cancel the jobs that have not ended, and return their ids.

    Args:
        saving: ids of jobs that are only sent SIGTERM: they save a checkpoint and end by themselves.
            Slurm kills the others KillWait after it, by default 30 s: too soon for a large model.

    Raises:
        NoAnswer: Slurm cannot be reached, so that some of them may go on.
    """
    wanted = {job.job_id: job for job in jobs}
    said = poll(wanted.values())
    if said.problem and set(wanted) - said.alive - set(said.endings) - said.taken:
        raise NoAnswer(said.problem)
    for some in _calls(said.alive - set(saving)):
        ask("scancel", *some.split(","))
    for some in _calls(said.alive & set(saving)):
        _end(some.split(","))
    return said.alive


def _end(jobs: Sequence[str]) -> None:
    """Send SIGTERM to the processes of jobs. Raises NoAnswer, but not for jobs that end while it is sent."""
    done = run("scancel", "--signal=TERM", *jobs)
    if done.returncode and any(not _ENDED.search(line) for line in done.stderr.splitlines()):
        raise NoAnswer(f"scancel: {words(done)}")


def max_array_size() -> int:
    """The most elements an array can have: MaxArraySize; 0 means that arrays are off. Raises NoAnswer."""
    return max(1, int(_configured("MaxArraySize") or 1001))


def _configured(setting: str) -> str | None:
    """A setting of the cluster; None if it has none of this name. Raises NoAnswer."""
    for line in ask("scontrol", "show", "config").splitlines():
        name, _, value = line.partition("=")
        if name.strip() == setting:
            return value.strip()
    return None


def expected_start(script: str) -> str | None:
    """Slurm's estimate of when a batch script's first job would start if submitted now; None if unknown.

    Raises:
        SchedulerError: the script would be refused, or Slurm cannot be reached; the message quotes it.
    """
    done = run("sbatch", "--test-only", given=script)
    if done.returncode:
        raise SchedulerError(f"sbatch: {words(done)}")
    match = re.search(r"to start at (\S+)", done.stderr)
    return match[1] if match else None
