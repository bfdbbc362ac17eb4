"""Clocks and power of a GPU, as nvidia-smi reports them: their settings, and how long it was throttled.

A call takes 0.05 s on an H200 and needs no rights.
"""

from __future__ import annotations

from math import isfinite

from model.measure.nvml import full_uuid
from model.record.records import Clocks
from model.record.speed import LoadClocks
from runner.state import gpus

_HELD_BACK = "clocks_event_reasons_counters."
_MICROSECOND = 1e-6
# nvidia-smi's name for each field of Clocks, and its unit there. Fields with several names are sums.
_FIELDS: dict[str, tuple[tuple[str, ...], float]] = {
    "power_limit_watts": (("enforced.power.limit",), 1.0),
    "sm_mhz": (("clocks.applications.graphics",), 1.0),
    "memory_mhz": (("clocks.applications.memory",), 1.0),
    "power_capped_seconds": ((f"{_HELD_BACK}sw_power_cap",), _MICROSECOND),
    "slowed_seconds": (
        tuple(
            f"{_HELD_BACK}{reason}"
            for reason in ("sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")
        ),
        _MICROSECOND,
    ),
}


def clocks(uuid: str | None) -> Clocks | None:
    """The clocks of a GPU; None if there is no GPU, or nvidia-smi does not say."""
    line = uuid and _ask(uuid, [name for names, _ in _FIELDS.values() for name in names])
    return parse(line) if line else None


def clocks_now(uuid: str | None) -> LoadClocks | None:
    """The clocks that a GPU has at this moment; None as for `clocks`."""
    line = uuid and _ask(uuid, ["clocks.sm", "clocks.mem", "enforced.power.limit"])
    words = [word.strip() for word in (line or "").split(",")]
    if len(words) != len(LoadClocks.model_fields):
        return None
    return LoadClocks(**dict(zip(LoadClocks.model_fields, map(_number, words), strict=True)))


def _ask(uuid: str, fields: list[str]) -> str | None:
    return gpus.nvidia_smi(f"--id={full_uuid(uuid)}", f"--query-gpu={','.join(fields)}")


def parse(line: str) -> Clocks | None:
    """Read nvidia-smi's line; what it does not know is None. Returns None if it is not such a line."""
    words = [word.strip() for word in line.strip().split(",")]
    if len(words) != sum(len(names) for names, _ in _FIELDS.values()):
        return None
    values: dict[str, float | None] = {}
    for field, (names, unit) in _FIELDS.items():
        numbers = [_number(words.pop(0)) for _ in names]
        reported = [number for number in numbers if number is not None]
        values[field] = sum(reported) * unit if len(reported) == len(numbers) else None
    return Clocks(**values)


def _number(word: str) -> float | None:
    try:
        number = float(word)
    except ValueError:  # [N/A]
        return None
    return number if isfinite(number) else None
