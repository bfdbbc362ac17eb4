"""The local executor: a queue on this machine, with each run in its own process."""

from __future__ import annotations

import errno
import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from pydantic import ValidationError

from model.disk.files import open_regular
from model.disk.record import Outcome, Result, StepRecord
from model.errors import UserError
from model.units import counted
from runner.job.phase import Stage, current
from runner.job.ranks.leader import node
from runner.plan.layout import layout
from runner.spec.problems import InvalidFile, Problem
from runner.spec.profile import Cluster, Profile
from runner.state import gpus, guard, ledger
from runner.state.code import snapshot
from runner.state.endings import Ending, of_exit
from runner.state.process import go_on, oom_kills
from runner.state.tasks import Task

POLL_SECONDS = 0.1
log = logging.getLogger(__name__)


class Watcher:
    """Receives the queue's events. This base class ignores them.

    Attributes:
        stop_early: set to start no more runs; those that are running go on.
    """

    stop_early = False

    def queued(self, tasks: Sequence[Task]) -> None:
        """Called once, before the first run starts."""

    def started(self, task: Task) -> None:
        """Called after a run's process has started."""

    def certifying(self, task: Task, stage: Stage) -> None:
        """Called when a run's trial of its backend has come to another stage."""

    def stepped(self, task: Task, record: StepRecord) -> None:
        """Called for each step record that a run writes."""

    def ended(self, task: Task, outcome: Outcome, reason: str | None) -> None:
        """Called after a run's process has exited and its outcome is on disk."""

    def over(self) -> None:
        """Called once, after the last event, whatever ended the queue."""


@dataclass
class Child:
    """A run's process, and how much of its step records has been read."""

    task: Task
    process: subprocess.Popen[bytes]
    gpus: tuple[str, ...]  # only this run sees them; empty if it sees all
    deadline: float
    kills: int
    read: int = 0
    torn: bytes = b""
    stage: Stage | None = None
    ending: Ending | None = None  # set by the queue: a time limit, an interrupt

    def new_stage(self) -> Stage | None:
        """What the run does before its first step, if that has changed since the last call."""
        now = None if self.read else current(self.task.folder.attempt(self.task.attempt).path)
        if now is None or now == self.stage:
            return None
        self.stage = now
        return now

    def new_steps(self) -> list[StepRecord]:
        """Read the step records written since the last call; an incomplete last line waits for the next.

        A line that is not a record is skipped: it must not end the queue and its other runs.
        """
        try:
            path = self.task.folder.attempt(self.task.attempt).path / "steps.jsonl"
            with open(path, "rb", opener=open_regular) as file:
                file.seek(self.read)
                content = file.read()
        except OSError:
            return []
        self.read += len(content)
        *lines, self.torn = (self.torn + content).split(b"\n")
        return [record for line in lines for record in _records(line)]


def _records(line: bytes) -> Iterator[StepRecord]:
    with suppress(ValidationError):
        yield StepRecord.model_validate_json(line)


def run_queue(tasks: Sequence[Task], cluster: Cluster, watcher: Watcher) -> None:
    """Run tasks in order, `max_parallel` at a time, claiming each just before it starts.

    Whatever ends the queue, its runs save a checkpoint, if their task has one, and are recorded as cancelled.

    Raises:
        InvalidFile: the machine has too few GPUs, or its profile cannot give a run its processes; names the
            profile's key.
        KeyboardInterrupt: after a SIGINT, a SIGTERM, or the SIGHUP of a terminal that was closed.
    """
    devices = devices_for(cluster, [task.shape.processes for task in tasks])  # before anything is claimed
    profile = cluster.profile
    children = list[Child]()
    watcher.queued(tasks)
    with _signals() as received:
        try:
            _run(list(tasks), children, profile, devices, watcher, received)
        except BaseException as error:
            _abandon(children, watcher, error, received)
            raise
        finally:
            with suppress(OSError):
                watcher.over()


def _run(
    waiting: list[Task],
    children: list[Child],
    profile: Profile,
    devices: Sequence[str],
    watcher: Watcher,
    received: Sequence[signal.Signals],
) -> None:
    """Start what waits and reap what has ended until nothing is left, or a signal is received."""
    while waiting or children:
        if watcher.stop_early:
            waiting.clear()
        while waiting and len(children) < profile.max_parallel and not received:
            if (own := _free(devices, children, waiting[0])) is None:
                break
            if _claimed(task := waiting.pop(0)):
                children.append(_start(task, profile, own))
                watcher.started(task)
        time.sleep(POLL_SECONDS)
        children[:] = [child for child in children if not _finished(child, watcher)]
        if received:
            raise KeyboardInterrupt


@contextmanager
def _signals() -> Iterator[list[signal.Signals]]:
    """Collect the signals that ask this process to end; what is ignored, as under nohup, stays ignored."""
    received = list[signal.Signals]()
    asking = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    before = {number: signal.getsignal(number) for number in asking}
    heard = [number for number in asking if before[number] is not signal.SIG_IGN]
    for number in heard:
        signal.signal(number, lambda number, _frame: received.append(signal.Signals(number)))
    try:
        yield received
    finally:
        for number in heard:
            signal.signal(number, before[number])


def _reason(error: BaseException, received: Sequence[signal.Signals]) -> str:
    """Why a queue ends early: a signal that was received, before an error that it may have caused."""
    if isinstance(error, OSError) and error.errno == errno.EIO and not received:
        time.sleep(POLL_SECONDS)  # a terminal that is closed refuses output just before its SIGHUP arrives
    if received:
        return f"the launcher received {received[0].name}"
    return str(error) or "the launcher was interrupted"


def _abandon(
    children: Sequence[Child], watcher: Watcher, error: BaseException, received: Sequence[signal.Signals]
) -> None:
    """Stop the runs of a queue that ends early, then record and show how they ended."""
    with suppress(OSError):  # the terminal may be gone
        number = counted(len(children), "run")
        log.info("stopping %s to save what can be saved; Ctrl-C kills at once", number)
    ending = Ending(Outcome.CANCELLED, _reason(error, received))
    running = [child for child in children if child.process.poll() is None]
    for child in running:
        child.ending = ending
    count = len(received)
    _stop(running, hurry=lambda: len(received) > count)  # another signal kills them
    for child in children:  # before anything is shown
        _note(child)
    watcher.stop_early = True
    with suppress(OSError):
        for child in children:
            _tell(child, watcher)


def _claimed(task: Task) -> bool:
    """Claim a task, unless another user could change what it would run (UserError)."""
    run = task.folder.path
    guard.require_own(run.parent, run, run / "run.json")
    if task.code:
        snapshot.own(run.parent, task.code)
    if ledger.claim(task.folder, task.attempt, "local", task.parallel):
        return True
    log.info("%s: already claimed by another launch", task.label)
    return False


def devices_for(cluster: Cluster, processes: Sequence[int]) -> tuple[str, ...]:
    """The GPUs of this machine, to share out among runs; empty if a run is alone and sees all.

    Args:
        processes: of each run.

    Raises:
        InvalidFile: the machine has too few GPUs, or its profile cannot give a run its processes.
    """
    _require_room(cluster, processes)
    profile, most = cluster.profile, max(processes)
    if not profile.gpus or (profile.max_parallel == 1 and most == 1):
        return ()
    environment = {**os.environ, **profile.env}
    devices = gpus.visible(environment)
    here = f"is more than {gpus.counted(devices, environment)}"
    if 1 < most > len(devices):
        raise _refused(cluster, "gpus", f"a run of {most} processes, each with a GPU, {here}")
    if profile.max_parallel > len(devices):
        raise _refused(cluster, "max_parallel", f"max_parallel {profile.max_parallel} x gpus 1 {here}")
    return devices


def _require_room(cluster: Cluster, processes: Sequence[int]) -> None:
    """Refuse runs of more processes than the profile gives this machine. Raises InvalidFile."""
    try:
        for number in processes:
            layout(cluster.profile, number)
    except UserError as error:
        key = "gpus_per_node" if cluster.profile.gpus else "processes_per_node"
        raise _refused(cluster, key, str(error)) from error


def _refused(cluster: Cluster, key: str, text: str) -> InvalidFile:
    return InvalidFile([Problem(cluster.document.mark((key,)), text)])


def _free(devices: Sequence[str], children: Sequence[Child], task: Task) -> tuple[str, ...] | None:
    """GPUs for a run, one for each process; None while too few are free."""
    taken = {device for child in children for device in child.gpus}
    free = [device for device in devices if device not in taken]
    wanted = task.shape.processes if devices else 0
    return tuple(free[:wanted]) if len(free) >= wanted else None


def _start(task: Task, profile: Profile, own: tuple[str, ...]) -> Child:
    visible = {gpus.VARIABLE: ",".join(own)} if own else {}  # some of those that the profile's `env` names
    folder = task.folder.attempt(task.attempt).path
    command = [
        *profile.python_command,
        *snapshot.options(task.folder.path.parent, task.code),
        "-m",
        "runner.job",
        str(task.folder.path),
        str(task.attempt),
        str(os.getpid()),
    ]
    try:
        with (folder / "stdout.log").open("ab") as out, (folder / "stderr.log").open("ab") as err:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env={**os.environ, **profile.env, **visible, "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,  # Ctrl-C reaches only the launcher, which then stops its runs
            )
    except OSError as error:
        raise UserError(f"{error.filename}: {error.strerror}; {task.label} was not started") from error
    limit = task.shape.time_limit_seconds
    deadline = time.monotonic() + limit if limit else float("inf")
    return Child(task, process, own, deadline, oom_kills())


def _finished(child: Child, watcher: Watcher) -> bool:
    over = child.process.poll() is not None
    if not over and (stage := child.new_stage()):
        watcher.certifying(child.task, stage)
    for record in child.new_steps():
        watcher.stepped(child.task, record)
    if not over:
        if time.monotonic() > child.deadline:
            child.ending = Ending(Outcome.TIMEOUT, "reached its time limit")
            _stop([child])
            return _finished(child, watcher)
        return False
    _note(child)
    _tell(child, watcher)
    return True


def _tell(child: Child, watcher: Watcher) -> None:
    state = ledger.state(child.task.folder)
    assert state.outcome
    watcher.ended(child.task, state.outcome, state.reason)


def _note(child: Child) -> None:
    """Record how a process ended if nobody has, or it was stopped by the queue."""
    attempt, ending = child.task.folder.attempt(child.task.attempt), child.ending
    result = attempt.result
    if attempt.settled is None and ending is None:
        ending = _of_rank_0(child)
    if ending and (result is None or result.outcome is Outcome.CANCELLED):
        try:
            ledger.ended(child.task.folder, child.task.attempt, _with(result, ending))
        except OSError as error:
            where = child.task.folder.path
            raise UserError(f"{where}: {error.strerror}; could not record how the run ended") from error


def _of_rank_0(child: Child) -> Ending:
    """How a process without a result ended. If it is one of several, the reason names it."""
    ending = of_exit(child.process.returncode, oom_killed=oom_kills() > child.kills)
    if child.task.shape.processes == 1:
        return ending
    return replace(ending, reason=f"rank 0 on {node()}: {ending.reason}")


def _with(result: Result | None, ending: Ending) -> Ending:
    """The queue's ending, with the run's note about its checkpoint."""
    kept = result.reason.partition("; ")[2] if result and result.reason else ""
    return replace(ending, reason=f"{ending.reason}; {kept}") if kept else ending


def _stop(children: Sequence[Child], hurry: Callable[[], bool] = lambda: False) -> None:
    """Tell runs to save what they can and end; kill those that take too long, or all in a hurry."""
    for child in children:
        child.process.terminate()
        with suppress(ProcessLookupError):
            go_on(child.process.pid)  # one that was stopped would not hear it
    grace = max((child.task.folder.run.grace_seconds for child in children), default=0.0)
    until = time.monotonic() + grace
    while (
        any(child.process.poll() is None for child in children) and time.monotonic() < until and not hurry()
    ):
        time.sleep(POLL_SECONDS)
    for child in children:
        if child.process.poll() is None:
            os.killpg(child.process.pid, signal.SIGKILL)
            child.process.wait()
