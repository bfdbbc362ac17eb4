"""The local executor: a queue on this machine, each run in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from model.record import Outcome, StepRecord
from runner import ledger
from runner.cluster import Profile
from runner.outcomes import Ending, of_exit
from runner.tasks import Task

POLL_SECONDS = 0.1
GRACE_SECONDS = 10.0  # from SIGTERM to SIGKILL


@dataclass
class Child:
    """A run's process, and how far its step records have been read."""

    task: Task
    process: subprocess.Popen[bytes]
    deadline: float
    kills: int
    read: int = 0
    torn: bytes = b""
    ending: Ending | None = field(default=None)  # decided here: a time limit, an interrupt

    def new_steps(self) -> list[StepRecord]:
        """The step records written since the last call."""
        try:
            with (self.task.folder.attempt(self.task.attempt) / "steps.jsonl").open("rb") as file:
                file.seek(self.read)
                content = file.read()
        except FileNotFoundError:
            return []
        self.read += len(content)
        *lines, self.torn = (self.torn + content).split(b"\n")
        return [StepRecord.model_validate_json(line) for line in lines]


class Watcher:
    """Told of what happens in the queue. This one says nothing."""

    def started(self, task: Task) -> None:
        """A run's process was started."""

    def stepped(self, task: Task, record: StepRecord) -> None:
        """A run wrote a step record."""

    def ended(self, task: Task, outcome: Outcome, reason: str | None) -> None:
        """A run's process is gone, and this is how it ended."""


def run_queue(
    tasks: Sequence[Task], profile: Profile, watcher: Watcher, claim: Callable[[Task], bool]
) -> None:
    """Run tasks in order, `max_parallel` at once, each claimed just before it starts.

    Raises:
        KeyboardInterrupt: after the running ones were stopped and noted as cancelled.
    """
    waiting, children = list(tasks), list[Child]()
    try:
        while waiting or children:
            while waiting and len(children) < profile.max_parallel:
                if claim(task := waiting.pop(0)):
                    children.append(_start(task, profile))
                    watcher.started(task)
            time.sleep(POLL_SECONDS)
            children = [child for child in children if not _finished(child, watcher)]
    except KeyboardInterrupt:
        for child in children:
            child.ending = Ending(Outcome.CANCELLED, "interrupted at the launcher")
            _stop(child)
            _finished(child, watcher)
        raise


def _start(task: Task, profile: Profile) -> Child:
    folder = task.folder.attempt(task.attempt)
    command = [
        profile.python or sys.executable,
        "-P",
        "-m",
        "runner.job",
        str(task.folder.path),
        str(task.attempt),
        str(os.getpid()),
    ]
    with (folder / "stdout.log").open("ab") as out, (folder / "stderr.log").open("ab") as err:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **profile.env, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,  # Ctrl-C reaches the launcher alone, which then stops its runs
        )
    limit = profile.time_limit_seconds
    return Child(task, process, time.monotonic() + limit if limit else float("inf"), _oom_kills())


def _finished(child: Child, watcher: Watcher) -> bool:
    over = child.process.poll() is not None
    for record in child.new_steps():
        watcher.stepped(child.task, record)
    if not over:
        if time.monotonic() > child.deadline:
            child.ending = Ending(Outcome.TIMEOUT, "reached the profile's time limit")
            _stop(child)
            return _finished(child, watcher)
        return False
    _note(child)
    state = ledger.state(child.task.folder)
    assert state.outcome
    watcher.ended(child.task, state.outcome, state.reason)
    return True


def _note(child: Child) -> None:
    """Write how a process ended where it could not say so itself, or where the queue stopped it."""
    result = child.task.folder.result(child.task.attempt)
    if child.ending and (result is None or result.outcome is Outcome.CANCELLED):
        ledger.ended(child.task.folder, child.task.attempt, child.ending)
    elif result is None:
        ending = of_exit(child.process.returncode, oom_killed=_oom_kills() > child.kills)
        ledger.ended(child.task.folder, child.task.attempt, ending)


def _stop(child: Child) -> None:
    child.process.terminate()
    try:
        child.process.wait(GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(child.process.pid, signal.SIGKILL)
        child.process.wait()


def _oom_kills() -> int:
    """How many processes the kernel's out-of-memory killer has killed since boot."""
    counters = dict(line.split() for line in Path("/proc/vmstat").read_text().splitlines())
    return int(counters.get("oom_kill", 0))
