"""When a run must stop: a signal, or a time limit that comes near."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import FrameType

from runner.outcomes import Terminated

_PR_SET_PDEATHSIG = 1
ASK_SECONDS = 10.0  # a look at a shared filesystem
KILL_SECONDS = 5.0  # before its limit, when Slurm may begin to end a job


@dataclass
class Stop:
    """Collects reasons to stop; the training loop asks at every step boundary.

    Attributes:
        deadline: when to stop, by time.monotonic(), which no one can turn back; None for no limit.
        withdrawn: whether the run was cancelled alone, where its job goes on for others; asked now and then.
        cause: `signal` or `deadline` once there is one.
        watched: whether the loop has begun to ask; before that a signal ends the process at once.
    """

    deadline: float | None
    withdrawn: Callable[[], bool] | None = None
    cause: str | None = None
    watched: bool = False
    asked: float = 0.0  # by time.monotonic()

    def listen(self) -> None:
        """Take SIGTERM, and SIGUSR2, which submitit's jobs get before their time limit."""
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGUSR2, self._on_signal)

    def requested(self) -> bool:
        """Whether to stop now."""
        self.watched = True
        if self.cause is None and self.deadline is not None and time.monotonic() > self.deadline:
            self.cause = "deadline"
        if self.cause is None and self.withdrawn and time.monotonic() - self.asked > ASK_SECONDS:
            self.asked = time.monotonic()
            self.cause = "signal" if self.withdrawn() else None
        return self.cause is not None

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGUSR2:
            # submitit asks Slurm to send it 90 s before the limit; Slurm may send it up to 60 s sooner.
            # For short limits that is long before the end: the deadline decides, not the signal.
            return
        first, self.cause = self.cause is None, "signal"
        if first and not self.watched:
            raise Terminated


def die_with(parent: int) -> None:
    """Have this process killed when its parent dies: no orphan may spoil the next timing."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the process that started this one is gone")


def slurm_end() -> float | None:
    """When Slurm ends the job that this process is in, by time.monotonic(); None without a limit."""
    job_id = os.environ.get("SLURM_JOB_ID")
    if not job_id:
        return None
    given = os.environ.get("SLURM_JOB_END_TIME")
    end = float(given) if given else _ask_end(job_id)
    return None if end is None else time.monotonic() + end - time.time()


def deadline(end: float | None, grace_seconds: float) -> float | None:
    """When a job that Slurm ends at `end` must begin to stop, on the same clock; None without a limit."""
    if end is None:
        return None
    # A short limit leaves at least three quarters of its time for training.
    return end - min(grace_seconds, 0.25 * (end - time.monotonic()))


def _ask_end(job_id: str) -> float | None:
    """The job's end from the controller, for versions of Slurm that do not put it into the environment."""
    try:
        command = ["squeue", "-h", "-j", job_id, "-o", "%e"]
        said = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False).stdout
        return datetime.fromisoformat(said.split()[0]).timestamp()
    except (OSError, subprocess.TimeoutExpired, IndexError, ValueError):
        return None  # no limit, or no Slurm command inside a container: the grace signal is all there is


def requeue(marks: Path) -> None:
    """Put the job that this process is in back into the queue. Slurm then ends this process.

    Of the runs that share a job the first one does so, for all: a second time could hit the job as it runs
    again.

    Args:
        marks: a folder that the runs have in common.

    Raises:
        OSError: scontrol is not there or refuses.
    """
    mark = marks / f"{os.environ['SLURM_JOB_ID']}_requeued.{os.environ.get('SLURM_RESTART_COUNT', '0')}"
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    job_id = f"{array}_{task}" if array and task else os.environ["SLURM_JOB_ID"]
    done = subprocess.run(
        ["scontrol", "requeue", job_id], capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode:
        mark.unlink()
        raise OSError(f"scontrol requeue {job_id}: {done.stderr.strip()}")
