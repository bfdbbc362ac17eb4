"""Decides when a run must stop: on a signal, or because its time limit is near."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType

from runner.state.endings import Terminated

ASK_SECONDS = 10.0  # each check reads a shared filesystem


@dataclass
class Stop:
    """Collects reasons to stop; the training loop checks it after every step.

    Attributes:
        deadline: when to stop, on the time.monotonic() clock, which cannot be set back; None for no limit.
        withdrawn: whether this run alone was cancelled, in a shared job; polled every ASK_SECONDS.
        cause: `signal` or `deadline`; None until there is a reason to stop.
        watched: whether the loop has started checking; before that, a signal ends the process at once.
        steps: the last step done, since the loop checks once after each.
    """

    deadline: float | None
    withdrawn: Callable[[], bool] | None = None
    cause: str | None = None
    watched: bool = False
    steps: int = 0
    asked: float = 0.0  # on the time.monotonic() clock

    def listen(self) -> None:
        """Handle SIGTERM, and SIGUSR2, which submitit has Slurm send before the time limit."""
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGUSR2, self._on_signal)

    def requested(self) -> bool:
        """Whether to stop now; sets `cause` to the first reason."""
        self.watched = True
        self.steps += 1
        if self.cause is None and self.deadline is not None and time.monotonic() > self.deadline:
            self.cause = "deadline"
        if self.cause is None and self.withdrawn and time.monotonic() - self.asked > ASK_SECONDS:
            self.asked = time.monotonic()
            self.cause = "signal" if self.withdrawn() else None
        return self.cause is not None

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGUSR2:
            # Submitit asks Slurm to send it 90 s before the limit, and Slurm may send it up to 60 s earlier.
            # With a short limit that is long before the end, so the deadline decides, not the signal.
            return
        first, self.cause = self.cause is None, "signal"
        if first and not self.watched:
            raise Terminated


def deadline(end: float | None, grace_seconds: float) -> float | None:
    """When a job that Slurm ends at `end` must start to stop, on the same clock; None without a limit."""
    if end is None:
        return None
    # Even with a short limit, three quarters of the time are left for training.
    return end - min(grace_seconds, 0.25 * (end - time.monotonic()))
