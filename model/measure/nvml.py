"""A GPU's energy and clocks, as NVML reports them, and its mean power over windows between records.

The library comes with the extra `gpu`. Torch-free.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from types import ModuleType
from typing import Any, TypedDict

from model.record.records import StepRecord

# NVML's energy counter is updated ten times a second: on an H200, prefills of 0.115 s had the energy of one
# or two updates. Windows of power are long compared with that.
GRAIN_SECONDS = 0.1
SHORTEST_SECONDS = 1.0

# The bits of NVML's word, with nvidia-smi's names. Bit 0, an idle GPU, holds back nothing.
_REASONS = {
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}


class Gpu:
    """One GPU's sensors. Each gives None without a GPU, library or driver, or if it is not supported."""

    def __init__(self, uuid: str | None) -> None:
        self._nvml: ModuleType | None = None
        self._handle: Any = None
        if not uuid:
            return
        try:
            import pynvml
        except ImportError:
            return
        with suppress(pynvml.NVMLError):
            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(full_uuid(uuid))
            self._nvml = pynvml

    def joules(self) -> float | None:
        """Energy that it has used since the driver was loaded."""
        millijoules = self._ask("nvmlDeviceGetTotalEnergyConsumption")
        return None if millijoules is None else millijoules / 1e3

    def sm_mhz(self) -> float | None:
        """The clock of its multiprocessors at this moment."""
        return self._ask("nvmlDeviceGetClockInfo", 1)  # NVML_CLOCK_SM

    def throttle_reasons(self) -> str | None:
        """Name what holds back its clocks at this moment, with commas between; empty if nothing does."""
        bits = self._ask("nvmlDeviceGetCurrentClocksEventReasons")
        return None if bits is None else ", ".join(name for bit, name in _REASONS.items() if bits & bit)

    def _ask(self, question: str, *details: int) -> int | None:
        if self._nvml is None or not hasattr(self._nvml, question):  # an older library
            return None
        try:
            return int(getattr(self._nvml, question)(self._handle, *details))
        except self._nvml.NVMLError:
            return None


def full_uuid(uuid: str) -> str:
    """A GPU's UUID as NVML and nvidia-smi take it. Torch gives it without the prefix."""
    return uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"


class PowerUse(TypedDict):
    """Energy in the last `power_steps` steps and in the pauses between them, as a StepRecord has it."""

    power_joules: float | None
    power_seconds: float | None
    power_steps: int | None


UNKNOWN_POWER = PowerUse(power_joules=None, power_seconds=None, power_steps=None)


class PowerWindow:
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

    def pause(self, joules: float | None, at: float, steps: int) -> PowerUse:
        """Energy used so far, after so many more steps."""
        self._paused_at = at
        self._steps += steps
        if joules is None or self._joules is None:
            self._joules = None
            return UNKNOWN_POWER
        return PowerUse(
            power_joules=joules - self._joules, power_seconds=at - self._since, power_steps=self._steps
        )

    def close(self, joules: float | None) -> None:
        """Open the next window where the last pause began."""
        self._joules, self._since, self._steps = joules, self._paused_at, 0


def power_of_all(records: Sequence[StepRecord]) -> PowerUse:
    """The run's window from its processes' windows; empty while it is too short in one of them."""
    seconds = [record.power_seconds for record in records if record.power_seconds is not None]
    long = all(record.step_seconds * record.steps >= SHORTEST_SECONDS for record in records)
    if len(seconds) < len(records) or not (long or min(seconds) >= SHORTEST_SECONDS + GRAIN_SECONDS):
        return UNKNOWN_POWER
    return PowerUse(
        power_joules=sum(record.power_joules or 0.0 for record in records),
        power_seconds=max(seconds),
        power_steps=max(record.power_steps or 0 for record in records),
    )
