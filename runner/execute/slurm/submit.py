"""Submits attempts as job arrays, through submitit.

Each array has a unique name. Before sbatch is called, every attempt is claimed, and the array's name and the
attempt's place in it are recorded on disk. Whatever happens to the launcher, the next command can find the
array in Slurm by its name and knows which runs each element holds: one, or several in separate slots if nodes
are allocated whole.
"""

from __future__ import annotations

import contextlib
import io
import re
import signal
import subprocess
import uuid
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import FrameType

from model.errors import UserError
from model.units import counted
from runner.execute.slurm import client
from runner.execute.slurm.script import After, Array, submitted
from runner.plan.layout import layout
from runner.spec.profile import Profile
from runner.state import guard, ledger
from runner.state.code import snapshot
from runner.state.slurm import NoAnswer, SchedulerError, clean_environment
from runner.state.tasks import Shape, Task

SBATCH_SECONDS = 120  # sbatch itself retries for a while if the controller is busy
# sbatch's messages when the user or the cluster has reached a job limit.
_LIMIT = re.compile(
    r"QOSMaxSubmit|AssocMaxSubmit|MaxSubmitJob|job submit limit|MaxJobCount|temporarily unable"
)
# sbatch's messages when the controller did not answer: the jobs may exist.
_UNANSWERED = re.compile(r"timed out|Zero Bytes|onnection|not connected|Unable to contact")


class SubmitLimit(SchedulerError):
    """The user's job limit in Slurm's queue is reached.

    Attributes:
        left: the tasks that were not submitted; they are not claimed.
    """

    def __init__(self, message: str, left: Sequence[Task] = ()) -> None:
        super().__init__(message)
        self.left = left


class SubmitUnknown(NoAnswer):
    """Slurm may or may not have accepted an array."""


class Order:
    """When the arrays of a launch may start: block after block, and under one cap on concurrent jobs.

    A block starts when all jobs of the block before have started. The cap is that many slots. An array takes
    those that have been held longest, one for each job that it may run at once; their holders must end first.

    Args:
        cap: maximum number of jobs that run at once.
        jobs: of each expected array, by block; the block is None in a launch without blocks.
    """

    def __init__(self, cap: int, jobs: Mapping[int | None, Sequence[int]]) -> None:
        self._cap, self._jobs = cap, jobs
        self._slots: deque[str | None] = deque([None] * cap)  # each slot's holder
        self._block: int | None = None
        self._before, self._own = list[str](), list[str]()  # arrays of the block before, and of this one

    def next(self, block: int | None, jobs: int) -> tuple[int, After]:
        """How many jobs of the next array may run at once, and what it waits for."""
        if block != self._block:
            self._block, self._before, self._own = block, self._own or self._before, []
        beside = self._jobs[block]
        share = self._cap // len(beside) + (len(self._own) < self._cap % len(beside))
        limit = jobs if sum(beside) <= self._cap else max(1, min(jobs, share))
        holders = dict.fromkeys(array for array in islice(self._slots, limit) if array)
        return limit, After(ended=[*holders], started=self._before)

    def submitted(self, array: str, limit: int) -> None:
        """Slurm has accepted the array, with the limit that `next` returned."""
        self._own.append(array)
        for _ in range(limit):
            self._slots.popleft()
            self._slots.append(array)


def submit(
    tasks: Sequence[Task], profile: Profile, folder: Path, name: str, exclude: Sequence[str] = ()
) -> None:
    """Claim attempts and submit them as job arrays.

    Args:
        exclude: nodes that they must not run on.
        folder: for submitit's files; must be on a filesystem shared with the nodes.
        name: prefix of the job names.

    Raises:
        SubmitLimit: the queue is full; the error has the tasks that are left, with their claims released.
        SchedulerError: sbatch refused; claims of tasks that were not submitted are released.
        UserError: another user could change what the jobs would run, or the profile cannot give a run its
            processes.
    """
    _require_own(folder, tasks)
    size, several = client.max_array_size(), len({_kind(task) for task in tasks}) > 1
    shares = {task.shape: layout(profile, task.shape.processes).runs for task in tasks}
    cap = max(1, min(len(tasks), profile.max_parallel // max(shares.values(), default=1)))

    def group(task: Task) -> tuple[int | None, Shape, str | None]:
        """Tasks of one group share arrays."""
        return task.block if several else None, *_kind(task)

    jobs: dict[int | None, list[int]] = defaultdict(list)
    for (block, shape, _), count in Counter(map(group, tasks)).items():
        of_group = -(-count // shares[shape])
        jobs[block] += [min(size, of_group - start) for start in range(0, of_group, size)]
    order, waiting = Order(cap, jobs), list(tasks)
    while waiting:
        block, shape, _ = first = group(waiting[0])
        share, fits = shares[shape], min(size, _room(profile, waiting, len(tasks)))
        same = [task for task in waiting if group(task) == first][: fits * share]
        chosen = set(map(id, same))
        rest = [task for task in waiting if id(task) not in chosen]
        claimed = [task for task in same if ledger.claim(task.folder, task.attempt, "slurm", task.parallel)]
        packs = [claimed[start : start + share] for start in range(0, len(claimed), share)]
        try:
            if packs:
                limit, after = order.next(block, len(packs))
                array = Array(f"{name}-{uuid.uuid4().hex[:8]}", packs, limit, exclude, after)
                order.submitted(_submit(array, profile, folder), limit)
        except SubmitLimit as error:
            left = [*claimed, *rest]
            if len(packs) == 1:
                raise SubmitLimit(_left(str(error), len(tasks), left), left) from error
            waiting, size = left, len(packs) // 2  # a smaller array may still fit
        else:
            waiting = rest


def _kind(task: Task) -> tuple[Shape, str | None]:
    """What all runs of an array must share, because it has one command and one set of resources."""
    return task.shape, task.code


def _room(profile: Profile, waiting: Sequence[Task], count: int) -> int:
    """How many more jobs the profile allows in the queue. Raises SubmitLimit if none."""
    if profile.max_queued is None:
        return len(waiting)
    assert profile.slurm
    room = profile.max_queued - client.queued(profile.slurm.partition)
    if room < 1:
        full = f"the profile's max_queued of {counted(profile.max_queued, 'job')} is reached"
        raise SubmitLimit(_left(full, count, waiting), waiting)
    return room


def _left(why: str, count: int, left: Sequence[Task]) -> str:
    done = f"{count - len(left)} submitted, {len(left)} left"
    return f"{why}; {done}: launch again later, or use --wait to submit them as the queue empties"


def _require_own(folder: Path, tasks: Sequence[Task]) -> None:
    """Create submitit's folder, and refuse if other users could change a script or what the jobs run."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise UserError(f"{folder}: {error.strerror}; choose another place with --root") from error
    runs = [path for task in tasks for path in (task.folder.path, task.folder.path / "run.json")]
    guard.require_own(folder.parent, folder, *runs)
    for code in {task.code for task in tasks if task.code}:
        snapshot.own(folder.parent, code)


def _submit(array: Array, profile: Profile, folder: Path) -> str:
    """Submit an array and return its id."""
    for index, pack in enumerate(array.packs):
        for slot, task in enumerate(pack):
            ledger.intend(task.folder, task.attempt, array.name, index, len(array.packs), slot)
    ledger.flush(folder)
    try:
        jobs = _sbatch(array, profile, folder)
    except SubmitUnknown:
        raise  # the intents stay: the next command looks for the array by its name
    except SchedulerError as error:
        for task in array.tasks:
            ledger.release(task.folder, task.attempt, str(error))
        raise
    for pack, job_id in zip(array.packs, jobs, strict=True):
        for task in pack:
            ledger.submitted(task.folder, task.attempt, job_id)
    return jobs[0].partition("_")[0]


def _sbatch(array: Array, profile: Profile, folder: Path) -> list[str]:
    """Call sbatch and return the job id of each pack.

    Raises:
        SchedulerError: it refused.
        SubmitUnknown: it did not answer, so the array may exist.
    """
    try:
        with _silent(), _deadline(SBATCH_SECONDS), clean_environment():
            job_id = submitted(array, profile, folder)
    except UserError:
        raise
    except Exception as error:
        if not _refused(error):
            late = isinstance(error, TimeoutError) or isinstance(error.__cause__, TimeoutError)
            unknown = f"sbatch did not answer within {SBATCH_SECONDS} s" if late else _words(error)
            raise SubmitUnknown(
                f"{unknown}; run `runner status` to find out whether the jobs exist"
            ) from error
        kind = SubmitLimit if _LIMIT.search(str(error)) else SchedulerError
        raise kind(_words(error)) from error
    count = len(array.packs)
    return [job_id] if count == 1 else [f"{job_id}_{index}" for index in range(count)]


def _refused(error: Exception) -> bool:
    """Whether sbatch clearly refused. If it was killed or got no answer, it may still have submitted."""
    said = error.__cause__
    ended = isinstance(said, subprocess.CalledProcessError) and said.returncode > 0
    return ended and not _UNANSWERED.search(str(error))


@contextlib.contextmanager
def _deadline(seconds: int) -> Iterator[None]:
    """Raise TimeoutError in the body after `seconds`, because submitit waits for sbatch forever."""

    def late(_signal: int, _frame: FrameType | None) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Suppress submitit's output on standard error, which the exception repeats."""
    with contextlib.redirect_stderr(io.StringIO()):
        yield


def _words(error: Exception) -> str:
    lines = str(error).splitlines()
    return next((line for line in reversed(lines) if "sbatch" in line), lines[-1] if lines else repr(error))
