"""Submits attempts as job arrays, through submitit.

Each array has a unique name. Before sbatch is called, every attempt is claimed, and the array's name and the
attempt's place in it are recorded on disk. Whatever happens to the launcher, the next command can find the
array in Slurm by its name and knows which runs each element holds: one, or several in separate slots if nodes
are allocated whole.
"""

from __future__ import annotations

import contextlib
import io
import signal
import subprocess
import tempfile
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from types import FrameType

from model.record.errors import UserError
from model.record.units import counted
from runner.execute.slurm import client, refusals, site
from runner.execute.slurm.script import request
from runner.inputs.profile import Profile
from runner.plan.layout import layout
from runner.state import guard, ledger
from runner.state.attempts import JobShape, NextAttempt
from runner.state.code import snapshot
from runner.state.filesystem import not_writable
from runner.state.slurm import NoAnswer, SchedulerError, clean_environment, error_text

_BEFORE = 32  # how many arrays an array waits for at most
SBATCH_SECONDS = 180  # sbatch itself retries for two minutes if the controller is busy or its queue full


class SubmitLimit(SchedulerError):
    """The user's job limit in Slurm's queue is reached.

    Attributes:
        left: the attempts that were not submitted; they are not claimed.
    """

    def __init__(self, message: str, left: Sequence[NextAttempt] = ()) -> None:
        super().__init__(message)
        self.left = left


class SubmitUnknown(NoAnswer):
    """Slurm may or may not have accepted an array."""


@dataclass(frozen=True)
class Array:
    """A job array: one call of sbatch. All its runs have the same shape and code snapshot.

    Attributes:
        packs: the runs of each array element, which share a job.
        limit: maximum number of elements that run at once.
        exclude: nodes to avoid.
        after: ids of arrays that must end first (a dependency).
    """

    name: str
    packs: Sequence[Sequence[NextAttempt]]
    limit: int
    exclude: Sequence[str] = ()
    after: Sequence[str] = ()

    @property
    def attempts(self) -> list[NextAttempt]:
        """The attempts of all elements, in order."""
        return [attempt for pack in self.packs for attempt in pack]


@dataclass
class Lanes:
    """Enforces one cap on concurrent jobs over all arrays of a launch.

    Each lane gets a share of the cap and runs its arrays one after another.
    """

    cap: int
    count: int  # expected number of arrays
    last: list[str] = field(default_factory=list)  # ids of the submitted arrays, in order

    def next(self) -> tuple[int, list[str]]:
        """The next array's limit on concurrent elements, and the ids of the arrays that it depends on.

        Not only the last one of its lane: if that is cancelled before it starts, it ends at once.
        """
        lanes = max(1, min(self.cap, self.count))
        lane = len(self.last) % lanes
        limit = self.cap // lanes + (lane < self.cap % lanes)
        return limit, self.last[lane::lanes][-_BEFORE:]


def submit(
    attempts: Sequence[NextAttempt], profile: Profile, folder: Path, name: str, exclude: Sequence[str] = ()
) -> None:
    """Claim attempts and submit them as job arrays.

    Args:
        exclude: nodes that they must not run on.
        folder: for submitit's files; must be on a filesystem shared with the nodes.
        name: prefix of the job names.

    Raises:
        SubmitLimit: the queue is full; the error has the attempts that are left, with their claims released.
        SchedulerError: sbatch refused; claims of attempts that were not submitted are released.
        UserError: another user could change what the jobs would run, or the profile cannot give a run its
            processes.
    """
    _require_own(folder, attempts)
    size, kinds = site.max_array_size(), Counter(map(_kind, attempts))
    shares = {kind: layout(profile, kind[0].processes).runs for kind in kinds}
    arrays = sum(-(-count // (size * shares[kind])) for kind, count in kinds.items())
    lanes = Lanes(max(1, profile.max_parallel // max(shares.values(), default=1)), arrays)
    waiting = list(attempts)
    while waiting:
        fits = size
        if profile.max_queued is not None:
            assert profile.slurm
            fits = min(size, profile.max_queued - client.queued(profile.slurm.partition))
            if fits < 1:
                full = f"the profile's max_queued of {counted(profile.max_queued, 'job')} is reached"
                raise SubmitLimit(_limit_text(full, len(attempts), waiting), waiting)
        share = shares[_kind(waiting[0])]
        chosen, rest = _split_off(waiting, fits * share, in_order=profile.max_parallel == 1)
        claimed = [
            attempt
            for attempt in chosen
            if ledger.claim(attempt.folder, attempt.number, "slurm", attempt.parallel)
        ]
        packs = [claimed[start : start + share] for start in range(0, len(claimed), share)]
        try:
            if packs:
                limit, after = lanes.next()
                array = Array(f"{name}-{uuid.uuid4().hex[:8]}", packs, limit, exclude, after)
                lanes.last.append(_submit_array(array, profile, folder))
        except SubmitLimit as error:
            left = [*claimed, *rest]
            if len(packs) == 1:
                raise SubmitLimit(_limit_text(str(error), len(attempts), left), left) from error
            waiting, size = left, len(packs) // 2  # a smaller array may still fit
        else:
            waiting = rest


def _split_off(
    waiting: Sequence[NextAttempt], most: int, in_order: bool
) -> tuple[list[NextAttempt], list[NextAttempt]]:
    """The attempts of the next array, which are all of the first one's kind, and those that are left.

    Args:
        in_order: keep the order of the runs across arrays, too: end the array before another kind.
    """
    if in_order:
        alike = list(next(groupby(waiting, _kind))[1])
        others = list(waiting[len(alike) :])
        return alike[:most], alike[most:] + others
    kind = _kind(waiting[0])
    alike = [attempt for attempt in waiting if _kind(attempt) == kind]
    others = [attempt for attempt in waiting if _kind(attempt) != kind]
    return alike[:most], others + alike[most:]


def _kind(attempt: NextAttempt) -> tuple[JobShape, str | None]:
    """The traits that all runs of an array share, because it has one command and one set of resources."""
    return attempt.shape, attempt.code


def _limit_text(why: str, count: int, left: Sequence[NextAttempt]) -> str:
    done = f"{count - len(left)} submitted, {len(left)} left"
    return f"{why}; {done}: launch again later, or use --wait to submit them as the queue empties"


def _require_own(folder: Path, attempts: Sequence[NextAttempt]) -> None:
    """Create submitit's folder, and refuse if other users could change a script or what the jobs run."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise not_writable(folder, error.strerror) from error
    runs = [path for attempt in attempts for path in (attempt.folder.path, attempt.folder.path / "run.json")]
    guard.require_closed_to_strangers(folder.parent)
    guard.require_own(folder.parent, folder, *runs)
    for code in {attempt.code for attempt in attempts if attempt.code}:
        snapshot.read_trusted(folder.parent, code)


def _submit_array(array: Array, profile: Profile, folder: Path) -> str:
    """Submit an array and return its id."""
    for index, pack in enumerate(array.packs):
        for slot, attempt in enumerate(pack):
            ledger.record_intent(attempt.folder, attempt.number, array.name, index, len(array.packs), slot)
    ledger.flush(folder)
    try:
        jobs = _sbatch(array, profile, folder)
    except SubmitUnknown:
        raise  # the intents stay: the next command looks for the array by its name
    except SchedulerError as error:
        for attempt in array.attempts:
            ledger.release(attempt.folder, attempt.number, str(error))
        raise
    for pack, job_id in zip(array.packs, jobs, strict=True):
        for attempt in pack:
            ledger.record_job(attempt.folder, attempt.number, job_id)
    return jobs[0].partition("_")[0]


def _sbatch(array: Array, profile: Profile, folder: Path) -> list[str]:
    """Call sbatch and return the job id of each pack.

    Raises:
        SchedulerError: it refused.
        SubmitUnknown: it did not answer, so the array may exist.
    """
    try:
        # Submitit repeats in its exception what it writes on standard error.
        with contextlib.redirect_stderr(io.StringIO()), _deadline(SBATCH_SECONDS), clean_environment():
            job_id = _submit_through_submitit(array, profile, folder)
    except UserError:
        raise
    except Exception as error:
        cause = error.__cause__
        if isinstance(cause, subprocess.CalledProcessError) and cause.returncode > 0:
            refusal = f"sbatch: {error_text(cause)}"
            if not refusals.is_unanswered(refusal):
                raise (SubmitLimit if refusals.is_full(refusal) else SchedulerError)(refusal) from error
        # Killed, or without an answer, sbatch may still have submitted the array.
        unknown = str(error)
        if isinstance(error, TimeoutError) or isinstance(cause, TimeoutError):
            unknown = f"sbatch did not answer within {SBATCH_SECONDS} s"
        elif isinstance(cause, subprocess.CalledProcessError):
            unknown = f"sbatch: {error_text(cause)}"
        raise SubmitUnknown(f"{unknown}; run `runner status` to find out whether the jobs exist") from error
    count = len(array.packs)
    return [job_id] if count == 1 else [f"{job_id}_{index}" for index in range(count)]


def _submit_through_submitit(array: Array, profile: Profile, folder: Path) -> str:
    """Submit an array through submitit, whose files go to `folder`, and return its id.

    Submitit's own way would have each job unpickle a file. Here the batch script names the runs: Slurm keeps
    a copy of it, so nothing that a job finds on disk decides what it starts. It is copied from a private
    folder, because others may be able to put another folder in the place of `folder`.
    """
    from submitit import SlurmExecutor

    class Executor(SlurmExecutor):
        def _make_submission_file_text(self, command: str, uid: str) -> str:
            self.text: str = super()._make_submission_file_text(command, uid)
            return self.text

        def _make_submission_command(self, submission_file_path: Path) -> list[str]:
            own = Path(private, submission_file_path.name)
            own.write_text(self.text, encoding="utf-8")
            return ["sbatch", f"--job-name={array.name}", str(own)]  # by the name, others know whose it is

    first = array.attempts[0]
    executor = Executor(folder=folder)
    # Submitit's own takes the first "job N" of any text.
    executor._get_job_id_from_submission_command = client.parse_job_id  # type: ignore[method-assign, assignment]
    packs = [[f"{attempt.folder.path.name}/{attempt.number}" for attempt in pack] for pack in array.packs]
    parameters, command = request(profile, folder, array.name, first.shape, packs, array.limit, first.code)
    options = parameters["additional_parameters"]
    own = {
        "dependency": f"afterany:{':'.join(array.after)}" if array.after else "",
        "exclude": ",".join(sorted(array.exclude)),
    }
    for option, value in own.items():
        if value:  # the profile may also set it
            options[option] = f"{options[option]},{value}" if option in options else value
    executor.update_parameters(**parameters)
    if len(packs) > 1:
        executor.parameters["map_count"] = len(packs)
    with tempfile.TemporaryDirectory(prefix="assay-") as private:
        return executor._submit_command(command).job_id


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
