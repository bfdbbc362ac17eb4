"""A run's process on this machine: started, followed, stopped, and recorded when it has ended."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from pydantic import ValidationError

from model.measure import machine
from model.measure.hostmemory import ControlGroup, oom_kills
from model.record.errors import UserError
from model.record.files import no_link, open_regular
from model.record.outcome import Outcome
from model.record.records import StepRecord
from runner.inputs.profile import Profile
from runner.job.child import kill_group
from runner.job.phase import Stage, current
from runner.job.ranks.meeting import of_rank_0
from runner.state import gpus, ledger
from runner.state.attempts import NextAttempt
from runner.state.code import snapshot
from runner.state.endings import ABORTED, Ending, ending_of_abort, ending_of_exit, with_memory_need
from runner.state.process import resume_group

POLL_SECONDS = 0.1


@dataclass
class Child:
    """A run's process, and how much of its step records has been read."""

    attempt: NextAttempt
    process: subprocess.Popen[bytes]
    gpus: tuple[str, ...]  # only this run sees them; empty if it sees all
    deadline: float
    oom_kills: int
    group: ControlGroup | None = None  # of its processes, where the kernel can limit their memory
    read: int = 0
    torn: bytes = b""
    stage: Stage | None = None
    ending: Ending | None = None  # set by the queue: a time limit, an interrupt

    def new_stage(self) -> Stage | None:
        """The run's stage before its first step, if that has changed since the last call."""
        now = None if self.read else current(self.attempt.record.path)
        if now is None or now == self.stage:
            return None
        self.stage = now
        return now

    def new_steps(self) -> list[StepRecord]:
        """Read the step records written since the last call; an incomplete last line waits for the next.

        A line that is not a record is skipped: it must not end the queue and its other runs.
        """
        try:
            path = self.attempt.record.path / "steps.jsonl"
            with open(path, "rb", opener=open_regular) as file:
                file.seek(self.read)
                content = file.read()
        except OSError:
            return []
        self.read += len(content)
        *lines, self.torn = (self.torn + content).split(b"\n")
        records = []
        for line in lines:
            with suppress(ValidationError):
                records.append(StepRecord.model_validate_json(line))
        return records


def start_child(attempt: NextAttempt, profile: Profile, own_gpus: tuple[str, ...]) -> Child:
    """Start a run's process.

    Args:
        own_gpus: the GPUs that only this run sees; empty if it sees all.

    Raises:
        UserError: it cannot be started.
    """
    share = machine.thread_limits(attempt.shape.cpus, profile.max_parallel * attempt.shape.processes)
    choice = gpus.variable({**os.environ, **profile.env_here})
    visible = {choice: ",".join(own_gpus)} if own_gpus else {}  # some of those that the profile's `env` names
    folder = attempt.record.path
    command = [
        *profile.python_command,
        *snapshot.options(attempt.folder.path.parent, attempt.code),
        "-m",
        "runner.job",
        str(attempt.folder.path),
        str(attempt.number),
        str(os.getpid()),
    ]
    try:
        with (
            open(folder / "stdout.log", "ab", opener=no_link) as out,
            open(folder / "stderr.log", "ab", opener=no_link) as err,
        ):
            process = subprocess.Popen(
                command,
                cwd=folder,
                env={**os.environ, **share, **profile.env_here, **visible, "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,  # Ctrl-C reaches only the launcher, which then stops its runs
            )
    except OSError as error:
        why = f"{error.filename or command[0]}: {error.strerror}"  # a fork that fails names no file
        with suppress(UserError):  # its disk may be full
            ledger.record_end(attempt.folder, attempt.number, Ending(Outcome.FAILED, why))
        raise UserError(f"{why}; {attempt.label} was not started") from error
    limit = attempt.shape.time_limit_seconds
    deadline = time.monotonic() + limit if limit else float("inf")
    child = Child(attempt, process, own_gpus, deadline, oom_kills())
    run = attempt.folder.run
    if run.memory_bytes is not None:  # of each process; the group limits all of them
        most = run.memory_bytes * attempt.shape.processes
        group = ControlGroup.make(f"assay-{process.pid}", most, run.limit_of_memory)
        if group and group.add(process.pid):
            child.group = group
        elif group:
            group.remove()
    return child


def record_ending(child: Child) -> None:
    """Record how a process ended if nobody has, or it was stopped by the queue, unless its folder is gone."""
    if child.attempt.removed:
        if child.group:
            child.group.remove()
        return
    record, ending = child.attempt.record, child.ending
    result = record.result
    if record.settled is None and ending is None:
        code = child.process.returncode
        aborted = ending_of_abort(record.path / "stderr.log") if code in ABORTED else None
        memory = child.group.killed() if child.group else None
        ending = aborted or ending_of_exit(code, oom_killed=oom_kills() > child.oom_kills, memory=memory)
        if ending.outcome is Outcome.OOM_HOST:
            ending = with_memory_need(ending, record.planned.config)
        if child.attempt.shape.processes > 1:  # of these, it was the one that this machine started
            ending = of_rank_0(ending)
    if child.group:
        child.group.remove()
    if ending and (result is None or result.outcome is Outcome.CANCELLED):
        # The run's own reason may end in a note about its checkpoint.
        checkpoint = result.reason.partition("; ")[2] if result and result.reason else ""
        if checkpoint:
            ending = replace(ending, reason=f"{ending.reason}; {checkpoint}")
        try:
            ledger.record_end(child.attempt.folder, child.attempt.number, ending)
        except OSError as error:
            where = child.attempt.folder.path
            raise UserError(f"{where}: {error.strerror}; could not record how the run ended") from error


def stop_children(children: Sequence[Child], hurry: Callable[[], bool] = lambda: False) -> None:
    """Tell runs to save what they can and end; kill those that take too long, or all in a hurry."""
    for child in children:
        child.process.terminate()
        resume_group(child.process.pid)  # one that was stopped would not hear it
    folders = (child.attempt.folder for child in children if not child.attempt.removed)
    grace = max((folder.run.grace_seconds for folder in folders), default=0.0)
    until = time.monotonic() + grace
    while (
        any(child.process.poll() is None for child in children) and time.monotonic() < until and not hurry()
    ):
        time.sleep(POLL_SECONDS)
    for child in children:
        kill_group(child.process)
