"""A GPU's energy and clocks, as NVML reports them. The library comes with the extra `gpu`."""

from __future__ import annotations

from types import ModuleType
from typing import Any

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
        if uuid:
            self._nvml, self._handle = _opened(uuid)

    def joules(self) -> float | None:
        """Energy that it has used since the driver was loaded."""
        millijoules = self._ask("nvmlDeviceGetTotalEnergyConsumption")
        return None if millijoules is None else millijoules / 1e3

    def sm_mhz(self) -> float | None:
        """The clock of its multiprocessors at this moment."""
        return self._ask("nvmlDeviceGetClockInfo", 1)  # NVML_CLOCK_SM

    def throttle_reasons(self) -> str | None:
        """What holds back its clocks at this moment, with commas between; empty if nothing does."""
        found = self._ask("nvmlDeviceGetCurrentClocksEventReasons")
        return None if found is None else ", ".join(name for bit, name in _REASONS.items() if found & bit)

    def _ask(self, question: str, *details: int) -> int | None:
        if self._nvml is None or not hasattr(self._nvml, question):  # an older library
            return None
        try:
            return int(getattr(self._nvml, question)(self._handle, *details))
        except self._nvml.NVMLError:
            return None


def full(uuid: str) -> str:
    """A GPU's UUID as NVML and nvidia-smi take it. Torch gives it without the prefix."""
    return uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"


def _opened(uuid: str) -> tuple[ModuleType | None, Any]:
    """The library and its handle of the GPU."""
    try:
        import pynvml
    except ImportError:
        return None, None
    try:
        pynvml.nvmlInit()
        return pynvml, pynvml.nvmlDeviceGetHandleByUUID(full(uuid))
    except pynvml.NVMLError:
        return None, None
