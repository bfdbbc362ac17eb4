"""When a run must stop: on a signal, or because its time limit is near."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType

from runner.state.endings import Terminated

_PR_SET_PDEATHSIG = 1
ASK_SECONDS = 10.0  # a look at a shared filesystem


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


def deadline(end: float | None, grace_seconds: float) -> float | None:
    """When a job that Slurm ends at `end` must begin to stop, on the same clock; None without a limit."""
    if end is None:
        return None
    # A short limit leaves at least three quarters of its time for training.
    return end - min(grace_seconds, 0.25 * (end - time.monotonic()))
