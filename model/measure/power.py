"""Mean power over windows that are long compared with the grain of a GPU's energy counter. Torch-free."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from model.record.records import StepRecord

# NVML's counter is updated ten times a second: on an H200, prefills of 0.115 s had the energy of one or two
# updates.
GRAIN_SECONDS = 0.1
SHORTEST_SECONDS = 1.0


class Used(TypedDict):
    """Energy in the last `power_steps` steps and in the pauses between them, as a StepRecord has it."""

    power_joules: float | None
    power_seconds: float | None
    power_steps: int | None


UNKNOWN = Used(power_joules=None, power_seconds=None, power_steps=None)


class Window:
    """The energy that one GPU has used since an earlier record, and in which time at least.

    A reading can lack the energy of the last grain before it, which then falls into the window that the
    reading opens; so that window counts as a grain longer. Of consecutive windows only the first does: what
    the next one gains at its start, the one before has lost at its end.
    """

    def __init__(self) -> None:
        self._joules: float | None = None  # used when the window opened
        self._since = self._paused_at = 0.0
        self._steps = 0

    def resume(self, joules: float | None, at: float) -> None:
        """Go on at `at` seconds, after a pause. A long one, as of a checkpoint, is in no window."""
        if self._joules is None or at - self._paused_at > GRAIN_SECONDS:
            self._joules, self._since, self._steps = joules, at - GRAIN_SECONDS, 0

    def pause(self, joules: float | None, at: float, steps: int) -> Used:
        """What was used up to now, after so many more steps."""
        self._paused_at = at
        self._steps += steps
        if joules is None or self._joules is None:
            self._joules = None
            return UNKNOWN
        return Used(
            power_joules=joules - self._joules, power_seconds=at - self._since, power_steps=self._steps
        )

    def close(self, joules: float | None) -> None:
        """Open the next window where the last pause began."""
        self._joules, self._since, self._steps = joules, self._paused_at, 0


def of_all(records: Sequence[StepRecord]) -> Used:
    """The run's window from its processes' windows; empty while it is too short in one of them."""
    seconds = [each.power_seconds for each in records if each.power_seconds is not None]
    long = all(each.step_seconds * each.steps >= SHORTEST_SECONDS for each in records)
    if len(seconds) < len(records) or not (long or min(seconds) >= SHORTEST_SECONDS + GRAIN_SECONDS):
        return UNKNOWN
    return Used(
        power_joules=sum(each.power_joules or 0.0 for each in records),
        power_seconds=max(seconds),
        power_steps=max(each.power_steps or 0 for each in records),
    )
