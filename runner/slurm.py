"""The Slurm executor: job arrays, through submitit.

A submission is an array with a name of its own. Each of its attempts is claimed and has that name and its
place in the array noted on disk before sbatch is called, so that whatever happens to the launcher, the next
command can find the array in Slurm by its name and knows which runs each element is: one, or several in
slots of their own where nodes are handed out whole.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import signal
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from model.errors import UserError
from model.record import RunFolder
from runner import container, ledger, scheduler, snapshot
from runner.cluster import Profile
from runner.errors import SchedulerError, SubmitLimit, SubmitUnknown
from runner.job import attempt_of_restart, run_attempt, withdrawn
from runner.tasks import Shape, Task

if TYPE_CHECKING:
    from submitit import SlurmExecutor

SBATCH_SECONDS = 120  # sbatch itself retries for a while where the controller is busy
# What sbatch says where a user or the cluster has as many jobs as are allowed.
_LIMIT = re.compile(
    r"QOSMaxSubmit|AssocMaxSubmit|MaxSubmitJob|job submit limit|MaxJobCount|temporarily unable"
)
# What it says where the controller did not answer it: the jobs may be there.
_UNANSWERED = re.compile(r"timed out|Zero Bytes|onnection|not connected|Unable to contact")


@dataclass(frozen=True)
class Array:
    """One call of sbatch.

    Attributes:
        packs: the runs of each element, which share a job.
        limit: elements that may run at once.
        after: the array that must be over before.
    """

    name: str
    packs: Sequence[Sequence[Task]]
    limit: int
    exclude: Sequence[str] = ()
    after: str | None = None

    @property
    def tasks(self) -> list[Task]:
        """The runs of all elements."""
        return [task for pack in self.packs for task in pack]


@dataclass
class Lanes:
    """Keeps all arrays of a launch together to one cap on jobs at once.

    Each lane has its share of the cap and runs one array after another.
    """

    cap: int
    count: int  # of arrays, as far as that is known before
    last: list[str] = field(default_factory=list)  # the arrays submitted, in order

    def next(self) -> tuple[int, str | None]:
        """How many elements of the next array may run at once, and the array that it waits for."""
        lanes = max(1, min(self.cap, self.count))
        lane, turn = len(self.last) % lanes, len(self.last) // lanes
        limit = self.cap // lanes + (lane < self.cap % lanes)
        return limit, self.last[-lanes] if turn else None


def submit(
    tasks: Sequence[Task], profile: Profile, folder: Path, name: str, exclude: Sequence[str] = ()
) -> None:
    """Claim attempts and submit them as job arrays.

    Args:
        exclude: nodes that they must not run on.
        folder: for submitit's files; on a filesystem that the nodes share.
        name: how the jobs' names begin.

    Raises:
        SubmitLimit: the queue is full; what is left is in the error, released and unclaimed.
        SchedulerError: sbatch refused. What was not submitted is released.
    """
    _own_folder(folder)
    share, size = profile.runs_per_job, scheduler.max_array_size()
    kinds = Counter(map(_kind, tasks))
    arrays = sum(-(-count // (size * share)) for count in kinds.values())
    lanes = Lanes(max(1, profile.max_parallel // share), arrays)
    waiting = list(tasks)
    while waiting:
        fits = min(size, _room(profile, waiting, len(tasks)))
        kind = _kind(waiting[0])
        same = [task for task in waiting if _kind(task) == kind]
        rest = [task for task in waiting if _kind(task) != kind] + same[fits * share :]
        claimed = [t for t in same[: fits * share] if ledger.claim(t.folder, t.attempt, "slurm")]
        packs = [claimed[start : start + share] for start in range(0, len(claimed), share)]
        try:
            if packs:
                limit, after = lanes.next()
                array = Array(f"{name}-{uuid.uuid4().hex[:8]}", packs, limit, exclude, after)
                lanes.last.append(_submit(array, profile, folder))
        except SubmitLimit as error:
            left = [*claimed, *rest]
            if len(packs) == 1:
                raise SubmitLimit(_left(str(error), len(tasks), left), left) from error
            waiting, size = left, len(packs) // 2  # a smaller array may still find room
        else:
            waiting = rest


def _kind(task: Task) -> tuple[Shape, str | None]:
    """What runs of one array have in common: it has one command and asks for one set of resources."""
    return task.shape, task.code


def _room(profile: Profile, waiting: Sequence[Task], count: int) -> int:
    """How many jobs the profile lets into the queue now. Raises SubmitLimit where none."""
    if profile.max_queued is None:
        return len(waiting)
    assert profile.slurm
    room = profile.max_queued - scheduler.queued(profile.slurm.partition)
    if room < 1:
        full = f"the profile's max_queued of {profile.max_queued} jobs is reached"
        raise SubmitLimit(_left(full, count, waiting), waiting)
    return room


def _left(why: str, count: int, left: Sequence[Task]) -> str:
    done = f"{count - len(left)} submitted, {len(left)} left"
    return f"{why}; {done}: launch again later, or with --wait, which submits them in their turn"


def _own_folder(folder: Path) -> None:
    """Make submitit's folder. Whoever can write a pickle there runs code as its owner."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise UserError(f"{folder}: {error.strerror}; choose another place with --root") from error
    status = folder.stat()
    if status.st_mode & 0o022 or status.st_uid != os.getuid():
        raise UserError(f"{folder} is writable by others, who could run code as you: chmod 700 {folder}")


def _submit(array: Array, profile: Profile, folder: Path) -> str:
    """Submit an array; its id."""
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
    """Call sbatch and give each task's job id.

    Raises:
        SchedulerError: it refused.
        SubmitUnknown: it did not answer, so that the array may exist.
    """
    executor = _executor(profile, folder, array)
    paths = [[str(task.folder.path) for task in pack] for pack in array.packs]
    attempts = [[task.attempt for task in pack] for pack in array.packs]
    try:
        with _silent(), _deadline(SBATCH_SECONDS):
            jobs = executor.map_array(run_in_job, paths, attempts)
    except Exception as error:
        if not _refused(error):
            late = isinstance(error, TimeoutError) or isinstance(error.__cause__, TimeoutError)
            unknown = f"sbatch did not answer in {SBATCH_SECONDS} s" if late else _words(error)
            raise SubmitUnknown(f"{unknown}; `runner status` finds out whether the jobs exist") from error
        kind = SubmitLimit if _LIMIT.search(str(error)) else SchedulerError
        raise kind(_words(error)) from error
    return [job.job_id for job in jobs]


def _refused(error: Exception) -> bool:
    """Whether sbatch said no. Killed, unanswered or not understood, it may have submitted all the same."""
    said = error.__cause__
    ended = isinstance(said, subprocess.CalledProcessError) and said.returncode > 0
    return ended and not _UNANSWERED.search(str(error))


def adopt(pack: Sequence[tuple[RunFolder, int]], job_id: str, folder: Path) -> None:
    """Note the job id of attempts whose launcher died, and give their job the pickle that it waits for."""
    from submitit.core.utils import DelayedSubmission, JobPaths

    pickle = JobPaths(folder, job_id=job_id).submitted_pickle
    if not pickle.exists():
        paths, attempts = zip(*((str(run.path), attempt) for run, attempt in pack), strict=True)
        DelayedSubmission(run_in_job, list(paths), list(attempts)).dump(pickle)
    for run, attempt in pack:
        ledger.submitted(run, attempt, job_id)


def script(profile: Profile, folder: Path, name: str, shape: Shape, count: int) -> str:
    """The batch script that `submit` would pass to sbatch for so many runs of a shape. Needs no Slurm."""
    from submitit.slurm import slurm

    python = _python(profile, folder.parent, snapshot.current())
    command = f"{python} -u -m submitit.core._submit {shlex.quote(str(folder))}"
    elements, at_once = -(-count // profile.runs_per_job), profile.max_parallel // profile.runs_per_job
    several = {"map_count": elements} if elements > 1 else {}
    parameters = _parameters(profile, name, shape, at_once) | several
    return slurm._make_sbatch_string(command=command, folder=folder, **parameters)


def run_in_job(run_folders: Sequence[str], attempts: Sequence[int]) -> str:
    """Run the attempt of this task's slot inside a Slurm job, its output in the attempt's folder."""
    slot = int(os.environ.get("SLURM_LOCALID", "0"))
    members = [(RunFolder(Path(path)), number) for path, number in zip(run_folders, attempts, strict=True)]
    if slot >= len(members):
        return "a slot that no run is left for"
    run, number = members.pop(slot)
    attempt: int | None = number
    if int(os.environ.get("SLURM_RESTART_COUNT", "0")):
        attempt = attempt_of_restart(run, number)
    if attempt is None or withdrawn(run, attempt):
        return "nothing left to do"
    for descriptor, log in ((1, "stdout.log"), (2, "stderr.log")):
        file = os.open(run.attempt(attempt) / log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(file, descriptor)
        os.close(file)
    return run_attempt(str(run.path), attempt, [fellow for fellow, _ in members])


def _executor(profile: Profile, folder: Path, array: Array) -> SlurmExecutor:
    from submitit import SlurmExecutor

    executor = SlurmExecutor(folder=folder, python=_python(profile, folder.parent, array.tasks[0].code))
    parameters = _parameters(profile, array.name, array.tasks[0].shape, array.limit)
    if array.after:
        parameters["dependency"] = f"afterany:{array.after}"
    if array.exclude:
        parameters["exclude"] = ",".join(sorted(array.exclude))
    executor.update_parameters(**parameters)
    return executor


def _python(profile: Profile, study: Path, code: str | None) -> str:
    python = container.command(profile, profile.python or sys.executable)
    return f"{python} {shlex.join(snapshot.options(study, code))}"


def _parameters(profile: Profile, name: str, shape: Shape, limit: int) -> dict[str, Any]:
    slurm = profile.slurm
    assert slurm
    memory, seconds, share = shape.memory_bytes, shape.time_limit_seconds, profile.runs_per_job
    exports = [f"export {key}={shlex.quote(value)}" for key, value in profile.env.items()]
    reservation = {"reservation": slurm.reservation} if slurm.reservation else {}
    requeue = {"requeue": True} if profile.requeue else {"no-requeue": True}  # clusters differ in the default
    asked: dict[str, Any] = {
        "job_name": name,
        "time": -(-seconds // 60) if seconds else None,  # minutes, rounded up
        "mem": f"{memory * share // 2**20}M" if memory and slurm.ask_memory else None,
        "cpus_per_task": shape.cpus or profile.cpus,
        "gpus_per_node": profile.gpus * share if profile.gpus and not slurm.gres else None,
        "ntasks_per_node": share if share > 1 else None,
        "partition": slurm.partition,
        "account": slurm.account,
        "qos": slurm.qos,
        "constraint": slurm.constraint,
        "gres": slurm.gres,
        "exclusive": slurm.exclusive or None,
        "array_parallelism": limit,
        "srun_args": [*_slot_args(profile), *slurm.srun_args, *container.srun_args(profile)],
        "setup": [*slurm.setup, *exports],
        # Submitit asks for SIGUSR2 well before the limit, which for a short one is before Python listens, and
        # kills it. A run goes by its deadline instead: this signal does nothing.
        "additional_parameters": {"signal": "CONT@1", **reservation, **requeue, **slurm.options},
    }
    given = {key: value for key, value in asked.items() if value is not None}
    return {**given, "wckey": None}  # submitit's default is refused where wckeys are tracked


def _slot_args(profile: Profile) -> list[str]:
    """What keeps runs apart that share a node: GPUs of their own, and one that fails ends itself alone."""
    if profile.runs_per_job == 1:
        return []
    assert profile.slurm
    bound = any(word.startswith("--gpus-per-task") for word in profile.slurm.srun_args)
    return [*([] if bound else [f"--gpus-per-task={profile.gpus}"]), "--kill-on-bad-exit=0", "--wait=0"]


@contextlib.contextmanager
def _deadline(seconds: int) -> Iterator[None]:
    """Raise TimeoutError in the body after so many seconds; submitit waits for sbatch without a limit."""

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
    """Keep submitit from printing what the error says already."""
    with contextlib.redirect_stderr(io.StringIO()):
        yield


def _words(error: Exception) -> str:
    lines = str(error).splitlines()
    return next((line for line in reversed(lines) if "sbatch" in line), lines[-1] if lines else repr(error))
