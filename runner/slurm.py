"""The Slurm executor: job arrays, through submitit.

A submission is an array with a name of its own. Each of its attempts is claimed and has that name and its
place in the array noted on disk before sbatch is called, so that whatever happens to the launcher, the next
command can find the array in Slurm by its name and knows which run each element is.
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
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from model.errors import UserError
from model.record import RunFolder
from runner import container, ledger, scheduler, snapshot
from runner.cluster import Profile
from runner.errors import SchedulerError
from runner.job import attempt_of_restart, run_attempt
from runner.tasks import Task

if TYPE_CHECKING:
    from submitit import SlurmExecutor

SBATCH_SECONDS = 120  # sbatch itself retries for a while where the controller is busy
# What sbatch says where a user or the cluster has as many jobs as are allowed.
_LIMIT = re.compile(
    r"QOSMaxSubmit|AssocMaxSubmit|MaxSubmitJob|job submit limit|MaxJobCount|temporarily unable"
)
# What it says where the controller did not answer it: the jobs may be there.
_UNANSWERED = re.compile(r"timed out|Zero Bytes|onnection|not connected|Unable to contact")


class SubmitLimit(SchedulerError):
    """Slurm takes no more jobs of this user for now."""


class SubmitUnknown(SchedulerError):
    """Whether Slurm has taken an array is not known."""


@dataclass(frozen=True)
class Array:
    """One call of sbatch.

    Attributes:
        limit: elements that may run at once.
    """

    name: str
    tasks: Sequence[Task]
    limit: int
    exclude: Sequence[str] = ()


def submit(
    tasks: Sequence[Task], profile: Profile, folder: Path, name: str, exclude: Sequence[str] = ()
) -> int:
    """Claim attempts and submit them as job arrays; how many were submitted.

    Args:
        exclude: nodes that they must not run on.
        folder: for submitit's files; on a filesystem that the nodes share.
        name: how the jobs' names begin.

    Raises:
        SubmitLimit: the queue is full; what is left is released and unclaimed.
        SchedulerError: sbatch refused. What was not submitted is released.
    """
    _own_folder(folder)
    codes = dict.fromkeys(task.code for task in tasks)  # an array has one command: runs of one snapshot
    if len(codes) > 1:
        groups = [[task for task in tasks if task.code == code] for code in codes]
        return sum(submit(group, profile, folder, name, exclude) for group in groups)
    waiting, size, done = deque(tasks), scheduler.max_array_size(), 0
    # All arrays together keep to the cap on runs at once.
    limit = max(1, profile.max_parallel // max(1, -(-len(tasks) // size)))
    while waiting:
        chunk = [waiting.popleft() for _ in range(min(size, len(waiting)))]
        claimed = [task for task in chunk if ledger.claim(task.folder, task.attempt, "slurm")]
        try:
            if claimed:
                _submit(Array(f"{name}-{uuid.uuid4().hex[:8]}", claimed, limit, exclude), profile, folder)
        except SubmitLimit as error:
            if len(claimed) == 1:
                left = len(waiting) + 1
                raise SubmitLimit(f"{error}; {done} submitted, {left} left: launch again later") from error
            waiting.extendleft(reversed(claimed))
            size = len(claimed) // 2  # a smaller array may still find room
        else:
            done += len(claimed)
    return done


def _own_folder(folder: Path) -> None:
    """Make submitit's folder. Whoever can write a pickle there runs code as its owner."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise UserError(f"{folder}: {error.strerror}; choose another place with --root") from error
    status = folder.stat()
    if status.st_mode & 0o022 or status.st_uid != os.getuid():
        raise UserError(f"{folder} is writable by others, who could run code as you: chmod 700 {folder}")


def _submit(array: Array, profile: Profile, folder: Path) -> None:
    for index, task in enumerate(array.tasks):
        ledger.intend(task.folder, task.attempt, array.name, index, len(array.tasks))
    ledger.flush(folder)
    try:
        jobs = _sbatch(array, profile, folder)
    except SubmitUnknown:
        raise  # the intents stay: the next command looks for the array by its name
    except SchedulerError as error:
        for task in array.tasks:
            ledger.release(task.folder, task.attempt, str(error))
        raise
    for task, job_id in zip(array.tasks, jobs, strict=True):
        ledger.submitted(task.folder, task.attempt, job_id)


def _sbatch(array: Array, profile: Profile, folder: Path) -> list[str]:
    """Call sbatch and give each task's job id.

    Raises:
        SchedulerError: it refused.
        SubmitUnknown: it did not answer, so that the array may exist.
    """
    executor = _executor(profile, folder, array)
    paths = [str(task.folder.path) for task in array.tasks]
    try:
        with _silent(), _deadline(SBATCH_SECONDS):
            jobs = executor.map_array(run_in_job, paths, [task.attempt for task in array.tasks])
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


def adopt(run: RunFolder, attempt: int, job_id: str, folder: Path) -> None:
    """Note the job id of an attempt whose launcher died, and give its job the pickle that it waits for."""
    from submitit.core.utils import DelayedSubmission, JobPaths

    pickle = JobPaths(folder, job_id=job_id).submitted_pickle
    if not pickle.exists():
        DelayedSubmission(run_in_job, str(run.path), attempt).dump(pickle)
    ledger.submitted(run, attempt, job_id)


def script(profile: Profile, folder: Path, name: str, count: int) -> str:
    """The batch script that `submit` would pass to sbatch for so many runs. Needs no Slurm."""
    from submitit.slurm import slurm

    python = _python(profile, folder.parent, snapshot.current())
    command = f"{python} -u -m submitit.core._submit {shlex.quote(str(folder))}"
    parameters = _parameters(profile, name, profile.max_parallel) | (
        {"map_count": count} if count > 1 else {}
    )
    return slurm._make_sbatch_string(command=command, folder=folder, **parameters)


def run_in_job(run_folder: str, attempt: int) -> str:
    """Run one attempt inside a Slurm job, its output in the attempt's folder."""
    if int(os.environ.get("SLURM_RESTART_COUNT", "0")):
        attempt = attempt_of_restart(RunFolder(Path(run_folder)), attempt)
    folder = Path(run_folder) / f"attempt-{attempt}"
    for descriptor, name in ((1, "stdout.log"), (2, "stderr.log")):
        file = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(file, descriptor)
        os.close(file)
    return run_attempt(run_folder, attempt)


def _executor(profile: Profile, folder: Path, array: Array) -> SlurmExecutor:
    from submitit import SlurmExecutor

    executor = SlurmExecutor(folder=folder, python=_python(profile, folder.parent, array.tasks[0].code))
    parameters = _parameters(profile, array.name, array.limit)
    if array.exclude:
        parameters["exclude"] = ",".join(sorted(array.exclude))
    executor.update_parameters(**parameters)
    return executor


def _python(profile: Profile, study: Path, code: str | None) -> str:
    python = container.command(profile, profile.python or sys.executable)
    return f"{python} {shlex.join(snapshot.options(study, code))}"


def _parameters(profile: Profile, name: str, limit: int) -> dict[str, Any]:
    slurm = profile.slurm
    assert slurm
    memory, seconds = profile.memory_bytes, profile.time_limit_seconds
    exports = [f"export {key}={shlex.quote(value)}" for key, value in profile.env.items()]
    reservation = {"reservation": slurm.reservation} if slurm.reservation else {}
    requeue = {"requeue": True} if profile.requeue else {"no-requeue": True}  # clusters differ in the default
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
        "array_parallelism": limit,
        "srun_args": [*slurm.srun_args, *container.srun_args(profile)],
        "setup": [*slurm.setup, *exports],
        "additional_parameters": {**reservation, **requeue, **slurm.options},
    }
    given = {key: value for key, value in asked.items() if value is not None}
    return {**given, "wckey": None}  # submitit's default is refused where wckeys are tracked


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
