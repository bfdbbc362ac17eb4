"""Ends of axes: from zero where lengths are compared, else around the values, on round numbers."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil, floor, log10

_TICKS = 5
_APART = 0.5  # values below this share of the largest need an axis from zero: else it would show little else
_LEAST = 0.02  # of the largest value: an axis spans at least this, or tiny differences would look large


def ends(values: Iterable[float], zero: bool) -> tuple[float, float]:
    """The first and last value of an axis over these values, all of one sign or none.

    Args:
        values: at least one.
        zero: whether it must start at zero. Otherwise it starts near the smallest value, but only where the
            values are so close to each other that they would all lie at the far end.
    """
    low, high = min(known := list(values)), max(known)
    if zero or low <= _APART * high:
        return round_ends(min(low, 0.0), max(high, 0.0))
    room = max(0.08 * (high - low), (_LEAST * high - (high - low)) / 2)
    return round_ends(low - room, high + room)


def round_ends(low: float, high: float) -> tuple[float, float]:
    """The nearest round numbers outside of the two."""
    high = high if high > low else low + (abs(low) or 1.0)
    step = _round_step((high - low) / _TICKS)
    return _times(floor(low / step + 1e-9), step), _times(ceil(high / step - 1e-9), step)


def _round_step(step: float) -> float:
    """The next of 1, 2, 5, 10, ... at or above a tenth of an order of magnitude below the step."""
    size = 10.0 ** floor(log10(step))
    return next(size * part for part in (1, 2, 5, 10) if size * part >= 0.9 * step)


def _times(count: int, step: float) -> float:
    return round(count * step, 12)
