"""A median with its interval, and which value is the median of an even number of values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import sqrt

import numpy as np

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A median with an interval.

    Attributes:
        median: in the unit of the values.
        low, high: ends of the interval; None where it is refused, and then `method` says why.
        n: number of runs.
        method: what the interval is, worded for a caption.
    """

    median: float
    low: float | None
    high: float | None
    n: int
    method: str

    def map(self, function: Callable[[float], float]) -> Estimate:
        """The estimate of a monotone function of the value: the median and the interval carry over."""
        ends = [function(end) for end in (self.low, self.high) if end is not None]
        low, high = (min(ends), max(ends)) if ends else (None, None)
        return replace(self, median=function(self.median), low=low, high=high)


def median(values: Sequence[float], ratios: bool = True) -> float:
    """The middle value; of an even number of values the geometric mean of the two in the middle.

    So the median of rates is the rate at the median of seconds: 1 / sqrt(ab) = sqrt(1/a 1/b). The views of
    the database do the same. Values that are not all positive, which have no rates, get the arithmetic mean.

    Args:
        ratios: whether such values are compared by their ratio, and not, as losses, by their difference:
            these get the arithmetic mean.

    Raises:
        ValueError: no values.
    """
    if not len(values):
        raise ValueError("a median needs at least one value")
    ordered = sorted(values)
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return sqrt(low * high) if ratios and low > 0 else (low + high) / 2


def median_of_known(values: Iterable[float | None]) -> float | None:
    """The median of the values that are known; None if none is."""
    known = [value for value in values if value is not None]
    return median(known) if known else None


def at_rank(ordered: np.ndarray, rank: float, ratios: bool = True) -> float:
    """The value at a rank, counted from 0, between two values on a logarithmic scale as for `median`."""
    below = min(int(rank), len(ordered) - 2)
    low, high, part = float(ordered[below]), float(ordered[below + 1]), rank - below
    return low * (high / low) ** part if ratios and ordered[0] > 0 else low + (high - low) * part
