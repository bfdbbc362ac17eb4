"""Our jobs in Slurm: which they are, whether they go on, how they ended. One command asks for hundreds.

Slurm can give a job's number to another job later: when a controller loses its state or is set up again, and
when it has used up its numbers.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from model.record.records import LedgerEvent
from runner.execute.slurm.site import has_accounting
from runner.state import slurm
from runner.state.endings import Ending
from runner.state.ledger import RunState
from runner.state.slurm import (
    NoAnswer,
    ask,
    ending_of_job,
    error_text,
    run,
)

CLOCKS = timedelta(minutes=10)  # how far the clocks of a launcher and of the controller may differ
CALL = 500  # ids or names a call: command lines have a maximum length
_UNKNOWN = re.compile("Invalid job id")
_ENDED = re.compile(f"already completing or completed|{_UNKNOWN.pattern}")
_SUBMITTED = re.compile(r"Submitted batch job (\d+)(?: on cluster \S+)?|(\d+)(?:;\S+)?")
_EXIT = re.compile(r"\b(JobId|ArrayJobId|ArrayTaskId|ExitCode)=(\S+)")


@dataclass(frozen=True)
class Job:
    """A job, or an array element, that we submitted.

    Attributes:
        job_id: `ID`, or `ID_INDEX` for an array element.
        name: the unique name of its array; None if the ledger does not have it.
        after, before: sbatch was called between these two times; None if the ledger does not have them.
    """

    job_id: str
    name: str | None = None
    after: datetime | None = None
    before: datetime | None = None

    def is_ours(self, name: str, submitted: str) -> bool:
        """Whether a job of this number is ours, by its name and when it was submitted (Slurm's local time).

        Someone may have renamed our job, but no other job of this number was submitted at the same time. A
        requeue makes the submission time later, so a job whose name we do not know may also be a later one.
        """
        if self.name == name or self.after is None or self.before is None:
            return True
        try:
            moment = datetime.fromisoformat(submitted).astimezone()
        except ValueError:  # `Unknown`
            return self.name is None
        return self.after - CLOCKS <= moment and (self.name is None or moment <= self.before + CLOCKS)


def job_of(state: RunState) -> Job:
    """The job of a run's latest attempt, which must have one."""
    assert state.job_id
    intent, submitted = state.event("intent"), state.event("submitted")
    if intent is None or submitted is None:  # a requeued job made this attempt: its first one has the intent
        about = _events_of_job(state)
        intent = intent_of(state)
        submitted = next((event for event in about if event.job_id == state.job_id), None)
    return Job(
        state.job_id,
        intent.submission if intent else None,
        intent.time if intent else submitted.time if submitted else None,
        submitted.time if submitted else None,
    )


def intent_of(state: RunState) -> LedgerEvent | None:
    """The line about the latest attempt's job that was written before it was submitted."""
    about = (event for event in reversed(_events_of_job(state)) if event.event == "intent")
    return state.event("intent") or next(about, None)


def _events_of_job(state: RunState) -> list[LedgerEvent]:
    """The lines of the ledger about all attempts of the latest attempt's job."""
    events = state.folder.ledger
    numbers = {event.attempt for event in events if event.job_id == state.job_id}
    return [event for event in events if event.attempt in numbers]


class Poll:
    """Slurm's answer about some jobs at one moment.

    Attributes:
        endings: endings of the jobs that have ended, by job id.
        alive: ids of the jobs that have not.
        taken: ids that Slurm has given to other jobs, and that are not in the other two.
        problem: Slurm's error message, if any.
        runaway: ids of jobs that go on in accounting, but not for the controller, which has forgotten them.
    """

    def __init__(
        self,
        endings: dict[str, Ending],
        alive: set[str],
        taken: Collection[str] = (),
        problem: str | None = None,
        runaway: Collection[str] = (),
    ) -> None:
        self.endings, self.alive, self.problem = endings, alive, problem
        self.runaway = set(runaway)
        self.taken = set(taken) - alive - set(endings)

    @property
    def complete(self) -> bool:
        """Whether Slurm answered in full; if not, a job in neither set is unknown, not lost."""
        return self.problem is None


class _JobRow(NamedTuple):
    """A job as a command of Slurm shows it.

    Attributes:
        step_open: whether it failed while one of its steps has not ended, which may still tell why.
    """

    state: str
    exit_code: str
    node: str
    submitted: str
    name: str
    step_open: bool

    @property
    def ending(self) -> Ending | None:
        return ending_of_job(self.state, self.exit_code, self.node)


class _Jobs:
    """The jobs asked about as one source shows them: our jobs, and ids that other jobs have now.

    An array element that has not run is shown as its array is. Slurm keeps no record of an element that is
    cancelled before it starts; once none is left to start, it shows the array itself as cancelled. But the
    last element to start takes over the array's record, which is shown for a moment under the array's number,
    with a node.
    """

    def __init__(self, wanted: Mapping[str, Job], shown: Mapping[str, _JobRow]) -> None:
        rows = {}
        for job_id in wanted:
            array = shown.get(job_id.partition("_")[0])
            if row := shown.get(job_id) or (array if array and not slurm.placed(array.node) else None):
                rows[job_id] = row
        self.ours = {id_: job for id_, job in rows.items() if wanted[id_].is_ours(job.name, job.submitted)}
        self.taken = set(rows) - set(self.ours)
        endings = {job_id: job.ending for job_id, job in self.ours.items()}
        self.endings = {job_id: ending for job_id, ending in endings.items() if ending}
        self.alive = set(self.ours) - set(self.endings)


def poll(jobs: Iterable[Job]) -> Poll:
    """Ask accounting about jobs, and the controller where accounting may be out of date.

    The controller knows every job that has not ended. Accounting may never hear of an end, and then shows the
    job as alive for ever (`sacctmgr show runawayjobs`).
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
        accounting = _Jobs(wanted, _accounting(wanted))
    except NoAnswer as error:
        return _without_accounting(wanted, str(error))
    may_come_back = {job_id for job_id, ending in accounting.endings.items() if ending.outcome.may_come_back}
    steps_open = {job_id for job_id in accounting.endings if accounting.ours[job_id].step_open}
    doubtful = may_come_back | steps_open
    alive, taken, problem = accounting.alive, accounting.taken, None
    forgotten, ended_since = set[str](), dict[str, Ending]()
    if doubtful or accounting.alive or len(accounting.ours) < len(wanted):
        try:
            queue = _Jobs(wanted, _queue(wanted))
            doubtful = may_come_back & queue.alive | steps_open & set(queue.ours)
            if forgotten := accounting.alive - set(queue.ours):  # or ended since accounting was asked
                ended_since = _Jobs(wanted, _accounting(forgotten)).endings
            alive = (alive - forgotten) | doubtful | (set(queue.ours) - set(accounting.ours))
            taken = taken | queue.taken
        except NoAnswer as error:
            problem = str(error)
    endings = accounting.endings | ended_since
    certain = {job_id: ending for job_id, ending in endings.items() if job_id not in doubtful}
    return Poll(certain, alive, taken, problem, forgotten - set(ended_since))


def _without_accounting(wanted: Mapping[str, Job], problem: str) -> Poll:
    """The controller's answer. It remembers only for some minutes how jobs ended (MinJobAge).

    If the cluster has accounting, which does not answer at the moment, endings wait for it: the controller
    shows FAILED for a job whose step ran out of memory.
    """
    queue = _Jobs(wanted, _queue(wanted))
    if has_accounting():
        return Poll({}, queue.alive, queue.taken, problem)
    codes: dict[str, str] = {}
    for array in sorted({job_id.partition("_")[0] for job_id in queue.endings}):
        try:
            answer = ask("scontrol", "-o", "show", "job", array)
        except NoAnswer:  # it has forgotten the job since
            continue
        for line in answer.splitlines():
            facts: dict[str, str] = dict(_EXIT.findall(line))
            task, number = facts.get("ArrayTaskId"), facts.get("ArrayJobId") or facts.get("JobId", "")
            for element in _elements(f"{number}_[{task}]" if task else number):
                codes[element] = facts.get("ExitCode", "")
    coded = {job_id: job._replace(exit_code=codes.get(job_id, "")) for job_id, job in queue.ours.items()}
    return Poll(_Jobs(wanted, coded).endings, queue.alive, queue.taken)


def _accounting(job_ids: Iterable[str]) -> dict[str, _JobRow]:
    """Ask accounting about jobs and all elements of their arrays. Raises NoAnswer.

    It has rows for jobs and for their steps.

    Slurm reports FAILED for a job whose step ran out of memory or was cancelled, because its script returned
    an exit code. If srun itself ended a step, Slurm does not say who cancelled it.
    A range stands for elements that have not started, and its row may be older than theirs. A range with a
    node is the record of the array's last element, as `_Jobs` describes, and says nothing about the others.
    """
    rows = list[list[str]]()
    for arrays in _calls({job_id.partition("_")[0] for job_id in job_ids}):
        rows += slurm.sacct(slurm.JOB, "-j", arrays)
    shown: dict[str, _JobRow] = {}
    for job, *rest in sorted(rows, key=lambda row: "[" in row[0]):
        line, (job_id, _, step) = _JobRow._make((*rest, False)), job.partition(".")
        if "[" in job and slurm.placed(line.node):
            continue
        for element in _elements(job_id):
            whole = shown.get(element)
            if not step:
                shown.setdefault(element, line)
            elif whole is None or whole.state != "FAILED":
                continue
            elif line.state == "OUT_OF_MEMORY" or line.state.startswith("CANCELLED by"):
                shown[element] = whole._replace(state=line.state, exit_code=line.exit_code, step_open=False)
            else:
                shown[element] = whole._replace(step_open=whole.step_open or line.state in slurm.ALIVE)
    return shown


def _queue(job_ids: Iterable[str]) -> dict[str, _JobRow]:
    """Ask the controller about these jobs; they are returned by id. Raises NoAnswer.

    One user's jobs cost it little. Those of a colleague, who shares the root, are asked for by their ids.
    """
    shown = _queue_rows("--user", str(os.getuid()))
    arrays = {job_id.partition("_")[0] for job_id in job_ids}
    for ids in _calls(arrays - {job_id.partition("_")[0] for job_id in shown}):
        try:
            shown |= _queue_rows("-j", ids)
        except NoAnswer as error:
            if not _UNKNOWN.search(str(error)):  # it says so if none of them exists
                raise
    return shown


def _queue_rows(*options: str) -> dict[str, _JobRow]:
    answer = ask(
        "squeue", "-h", "-t", "all", "-r", *options, "-o", slurm.BAR.join(["%i", "%T", "%N", "%V", "%j"])
    )
    return {
        job_id: _JobRow._make((state, "", *rest, False)) for job_id, state, *rest in slurm.rows(answer, 5)
    }


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
    jobs = []  # user, id and name
    for joined in _calls(wanted):
        chosen = ("-u", str(owner), f"--name={joined}")
        answer = ask("squeue", "-h", "-t", "all", *chosen, "-o", slurm.BAR.join(["%U", "%F", "%j"]))
        jobs += slurm.rows(answer, 3)
        try:
            jobs += slurm.sacct("UID,JobID,JobName", "-X", *chosen, "-S", start)
        except NoAnswer:
            if has_accounting():
                raise
            # Without accounting, the controller knows every job that has not ended.
    theirs = [(job_id, name) for user, job_id, name in jobs if user == str(owner)]
    return {name: job_id.partition("_")[0] for job_id, name in theirs if name in wanted}


def _elements(job_id: str) -> list[str]:
    """Expand `12_[0-6:2,9%4]`, Slurm's form for pending array elements, to `12_0`, `12_2`, ... `12_9`."""
    array, bracket, ranges = job_id.partition("_[")
    if not bracket:
        return [job_id]
    spelled = ranges.rstrip("]").partition("%")[0].split(",")
    parts = [re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", part) for part in spelled]
    spans = [(int(part[1]), int(part[2] or part[1]), int(part[3] or 1)) for part in parts if part]
    return [f"{array}_{index}" for first, last, step in spans for index in range(first, last + 1, step)]


def pending_reasons(job_ids: Iterable[str]) -> dict[str, str]:
    """Why jobs have not started, in Slurm's words, such as `Priority`; empty where it has no reason yet.

    Raises:
        NoAnswer: Slurm cannot be reached, or has forgotten a job.
    """
    wanted = set(job_ids)
    shown = _reasons("--user", str(os.getuid())) if wanted else {}
    if not wanted & set(shown):  # a colleague's, or all have started
        shown = {job: why for ids in _calls(wanted) for job, why in _reasons("-j", ids).items()}
    return {job: "" if why == "None" else why for job, why in shown.items() if job in wanted}


def _reasons(*options: str) -> dict[str, str]:
    lines = ask("squeue", "-h", "-r", "-t", "PENDING", *options, "-o", "%i %r").splitlines()
    return {job: why for job, _, why in (line.partition(" ") for line in lines)}


def queued(partition: str | None) -> int:
    """Number of this user's jobs in Slurm's queue; each array element counts. Raises NoAnswer."""
    return len(_own_ids(*(["--partition", partition] if partition else [])))


def running() -> set[str]:
    """Ids of this user's jobs and array elements that have processes, stopped or not. Raises NoAnswer."""
    return set(_own_ids("-t", "RUNNING,SUSPENDED,STOPPED"))


def _own_ids(*options: str) -> list[str]:
    return ask("squeue", "-h", "-r", "--user", str(os.getuid()), *options, "-o", "%i").splitlines()


def cancel(jobs: Iterable[Job], saving: Collection[str] = ()) -> Poll:
    """Cancel the jobs that have not ended: those that are alive in the answer.

    Args:
        saving: ids of jobs that are only sent SIGTERM: they save a checkpoint and end by themselves.
            Slurm kills the others KillWait after it, by default 30 s: too soon for a large model.

    Raises:
        NoAnswer: Slurm cannot be reached, so that some of them may go on.
    """
    wanted = {job.job_id: job for job in jobs}
    answer = poll(wanted.values())
    if answer.problem and set(wanted) - answer.alive - set(answer.endings) - answer.taken:
        raise NoAnswer(answer.problem)
    for ids in _calls(answer.alive - set(saving)):
        ask("scancel", *ids.split(","))
    for ids in _calls(answer.alive & set(saving)):
        done = run("scancel", "--signal=TERM", *ids.split(","))
        lines = done.stderr.splitlines()
        if done.returncode and not all(map(_ENDED.search, lines)):  # jobs may end while it is sent
            raise NoAnswer(f"scancel: {error_text(done)}")
    return answer


def parse_job_id(answer: str) -> str:
    """The id in what sbatch printed; a site's wrapper may print more, with other numbers.

    Raises:
        ValueError: no line of it is sbatch's answer.
    """
    # The second form is that of --parsable.
    lines = [_SUBMITTED.fullmatch(line.strip()) for line in answer.splitlines()]
    answers = [line[1] or line[2] for line in lines if line]
    if not answers:
        raise ValueError(f"sbatch's answer names no job: {answer!r}")
    return answers[-1]
