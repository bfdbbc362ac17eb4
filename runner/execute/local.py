"""The local executor: a queue on this machine, with each run in its own process."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from model.record.errors import UserError
from model.record.outcome import Outcome
from model.record.records import StepRecord
from model.record.units import counted
from runner.execute.child import POLL_SECONDS, Child, record_ending, start_child, stop_children
from runner.inputs.document import InvalidFile
from runner.inputs.profile import Cluster, Profile
from runner.job.phase import Stage
from runner.plan.layout import layout
from runner.state import gpus, guard, ledger
from runner.state.attempts import NextAttempt
from runner.state.code import snapshot
from runner.state.endings import Ending

log = logging.getLogger(__name__)


class Watcher:
    """Receives the queue's events. This base class ignores them.

    Attributes:
        stop_early: set to start no more runs; those that are running go on.
    """

    stop_early = False

    def queued(self, attempts: Sequence[NextAttempt]) -> None:
        """Called once, before the first run starts."""

    def started(self, attempt: NextAttempt) -> None:
        """Called after a run's process has started."""

    def certifying(self, attempt: NextAttempt, stage: Stage) -> None:
        """Called when a run's trial of its backend has come to another stage."""

    def stepped(self, attempt: NextAttempt, record: StepRecord) -> None:
        """Called for each step record that a run writes."""

    def ended(self, attempt: NextAttempt, outcome: Outcome, reason: str | None) -> None:
        """Called after a run's process has exited and its outcome is on disk."""

    def over(self) -> None:
        """Called once, after the last event, whatever ended the queue."""


def run_queue(attempts: Sequence[NextAttempt], cluster: Cluster, watcher: Watcher) -> None:
    """Run attempts in order, `max_parallel` at a time, claiming each just before it starts.

    Whatever ends the queue, its runs save a checkpoint, if their task has one, and are recorded as cancelled.

    Raises:
        InvalidFile: the machine has too few GPUs, or its profile cannot give a run its processes; names the
            profile's key.
        KeyboardInterrupt: after a SIGINT, a SIGTERM, or the SIGHUP of a terminal that was closed.
    """
    require_program(cluster)  # before anything is claimed
    devices = devices_for(cluster, [attempt.shape.processes for attempt in attempts])
    profile = cluster.profile
    children = list[Child]()
    watcher.queued(attempts)
    with _signals() as received:
        try:
            _run(list(attempts), children, profile, devices, watcher, received)
        except BaseException as error:
            _abandon(children, watcher, error, received)
            raise
        finally:
            with suppress(OSError):
                watcher.over()


def _run(
    waiting: list[NextAttempt],
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
            taken = {device for child in children for device in child.gpus}
            free = [device for device in devices if device not in taken]
            wanted = waiting[0].shape.processes if devices else 0  # a GPU for each process
            if len(free) < wanted:
                break
            try:
                if _claim(attempt := waiting.pop(0)):
                    children.append(start_child(attempt, profile, tuple(free[:wanted])))
                    watcher.started(attempt)
            except UserError:
                if attempt.removed is None:
                    raise
                log.warning("%s: %s", attempt.label, attempt.removed)
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
    if isinstance(error, BrokenPipeError):
        return "nobody reads the launcher's output any more"
    return str(error) or "the launcher was interrupted"


def _abandon(
    children: Sequence[Child], watcher: Watcher, error: BaseException, received: Sequence[signal.Signals]
) -> None:
    """Stop the runs of a queue that ends early, then record and show how they ended."""
    running = [child for child in children if child.process.poll() is None]
    with suppress(OSError):  # the terminal may be gone
        if running:
            number = counted(len(running), "run")
            log.info("stopping %s to save what can be saved; press Ctrl-C again to kill at once", number)
    ending = Ending(Outcome.CANCELLED, _reason(error, received))
    for child in running:
        child.ending = ending
    count = len(received)
    stop_children(running, hurry=lambda: len(received) > count)  # another signal kills them
    for child in children:  # before anything is shown
        record_ending(child)
    watcher.stop_early = True
    with suppress(OSError):
        for child in children:
            _report(child, watcher)


def _claim(attempt: NextAttempt) -> bool:
    """Claim an attempt, unless another user could change what it would run (UserError)."""
    run = attempt.folder.path
    if attempt.removed:
        raise UserError(attempt.removed)
    guard.require_closed_to_strangers(run.parent)
    guard.require_own(run.parent, run, run / "run.json")
    if attempt.code:
        snapshot.read_trusted(run.parent, attempt.code)
    if ledger.claim(attempt.folder, attempt.number, "local", attempt.parallel):
        return True
    log.info("%s: already claimed by another launch", attempt.label)
    return False


def require_program(cluster: Cluster) -> None:
    """Refuse a profile whose runs start with a program that this machine has not. Raises InvalidFile."""
    profile, program = cluster.profile, cluster.profile.python_command[0]
    relative = "/" in program and not program.startswith("/")  # a run starts in its own folder
    if relative or not shutil.which(program, path={**os.environ, **profile.env_here}.get("PATH")):
        key = "wrapper" if profile.wrapper else "python"
        advice = "give its absolute path, or the name of one on PATH"
        raise _refused(cluster, key, f"no program '{program}' on this machine: {advice}")


def devices_for(cluster: Cluster, processes: Sequence[int]) -> tuple[str, ...]:
    """The GPUs of this machine, to share out among runs; empty if a run is alone and sees all.

    Args:
        processes: of each run.

    Raises:
        InvalidFile: the machine has too few GPUs, or its profile cannot give a run its processes.
    """
    profile, most = cluster.profile, max(processes)
    try:
        for number in processes:
            layout(profile, number)
    except UserError as error:  # more processes than the profile gives this machine
        key = "gpus_per_node" if profile.gpus else "processes_per_node"
        raise _refused(cluster, key, str(error)) from error
    if not profile.gpus or (profile.max_parallel == 1 and most == 1):
        return ()
    environment = {**os.environ, **profile.env_here}
    devices = gpus.visible(environment)
    here = f"is more than {gpus.described(devices, environment)}"
    if 1 < most > len(devices):
        raise _refused(cluster, "gpus", f"a run of {most} processes, each with a GPU, {here}")
    if profile.max_parallel > len(devices):
        raise _refused(cluster, "max_parallel", f"max_parallel {profile.max_parallel} x gpus 1 {here}")
    return devices


def _refused(cluster: Cluster, key: str, text: str) -> InvalidFile:
    return InvalidFile.at(cluster.document.mark((key,)), text)


def _finished(child: Child, watcher: Watcher) -> bool:
    over = child.process.poll() is not None
    if not over and (stage := child.new_stage()):
        watcher.certifying(child.attempt, stage)
    for record in child.new_steps():
        watcher.stepped(child.attempt, record)
    if not over:
        if time.monotonic() > child.deadline:
            child.ending = Ending(Outcome.TIMEOUT, "reached its time limit")
            stop_children([child])
            return _finished(child, watcher)
        return False
    record_ending(child)
    _report(child, watcher)
    return True


def _report(child: Child, watcher: Watcher) -> None:
    if removed := child.attempt.removed:
        watcher.ended(child.attempt, Outcome.LOST, removed)
        return
    state = ledger.state(child.attempt.folder)
    assert state.outcome
    watcher.ended(child.attempt, state.outcome, state.reason)
