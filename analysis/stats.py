"""Medians and their intervals. Pure and seeded; every interval says what it is an interval of.

Costs (seconds) are summarised and rates derived from them; rates are never averaged (Hoefler & Belli,
"Scientific Benchmarking of Parallel Computing Systems", SC'15, rules 3 to 6).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from math import comb
from statistics import median
from typing import Any

import numpy as np

Row = dict[str, Any]
Quantity = Callable[[Row, float], float]  # (a run's row, seconds per step) -> value, monotone in the seconds
CONFIDENCE = 0.95
_FEWEST_BLOCKS = 5
_AT_ONCE = 1_000_000  # resampled values, which bounds the memory


@dataclass(frozen=True)
class Estimate:
    """A median with an interval.

    Attributes:
        median: in the unit of the values.
        low, high: ends of the interval; None where there are too few values for one.
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

    def overlaps(self, other: Estimate) -> bool:
        """Whether the two cannot be told apart: their intervals overlap, or one of them has none."""
        if self.low is None or self.high is None or other.low is None or other.high is None:
            return True
        return self.low <= other.high and other.low <= self.high


def over_runs(values: Sequence[float]) -> Estimate:
    """Median over runs with the order-statistic interval, which assumes no distribution.

    The k-th smallest and k-th largest of n values enclose the median with probability 1 - 2 P(X < k),
    X binomial(n, 1/2). Below n = 6 no such interval reaches 95 %: the range is given, with the confidence
    that it does reach (n = 3: 75 %).

    Raises:
        ValueError: no values.
    """
    if not values:
        raise ValueError("a median needs at least one value")
    ordered, n = sorted(values), len(values)
    if n == 1:
        return Estimate(ordered[0], None, None, 1, "no interval: one run")
    k = max((k for k in range(1, n // 2 + 1) if _coverage(n, k) >= CONFIDENCE), default=1)
    what = "range of the runs" if k == 1 else "order-statistic interval over runs"
    method = f"{what}, which holds the median with {100 * _coverage(n, k):.3g} % confidence"
    return Estimate(median(ordered), ordered[k - 1], ordered[n - k], n, method)


def within_run(values: Sequence[float]) -> Estimate:
    """As `bootstrap`, which is slow, and several figures show the same run."""
    return _remembered(tuple(values))


@lru_cache(maxsize=4096)
def _remembered(values: tuple[float, ...]) -> Estimate:
    return bootstrap(values)


def bootstrap(values: Sequence[float], seed: int = 0, resamples: int = 1000) -> Estimate:
    """Median over one run's step records with a moving-block bootstrap interval.

    Neighbouring steps are correlated, so blocks of n^(1/3) neighbours are drawn (Kuensch 1989). The interval
    says how steady this run was, not what another run would give.

    Raises:
        ValueError: no values.
    """
    if not values:
        raise ValueError("a median needs at least one value")
    data, n = np.asarray(values, dtype=float), len(values)
    length = max(1, round(n ** (1 / 3)))
    if n < _FEWEST_BLOCKS * length:
        return Estimate(float(np.median(data)), None, None, 1, f"no interval: one run, {n} records")
    draw = np.random.default_rng(seed)
    blocks = np.lib.stride_tricks.sliding_window_view(data, length)
    starts = draw.integers(0, len(blocks), (resamples, -(-n // length)))
    medians = [
        median
        for some in np.array_split(starts, -(-resamples * n // _AT_ONCE))
        for median in np.median(blocks[some].reshape(len(some), -1)[:, :n], axis=1)
    ]
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(medians, [tail, 1 - tail])
    method = f"95 % block bootstrap within the one run, blocks of {length}: not what another run would give"
    return Estimate(float(np.median(data)), float(low), float(high), 1, method)


def estimates(rows: list[Row], value: Quantity) -> dict[str, Estimate]:
    """A quantity derived from the median step time, by label: over runs, or within the only run.

    Args:
        rows: one per run, with label, step_seconds and counted_step_seconds.
        value: the quantity.
    """
    found = {}
    for label, mine in by_label(rows).items():
        if len(mine) > 1:
            found[label] = over_runs([value(row, row["step_seconds"]) for row in mine])
        else:
            (only,) = mine
            found[label] = within_run(only["counted_step_seconds"]).map(partial(value, only))
    return found


def by_label(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """The rows of each label, both in the order in which they come."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["label"], []).append(row)
    return groups


def rate(column: str) -> Quantity:
    """The rate in a column, scaled from the run's median step time to another one.

    The formula of the rate itself is in views.sql.
    """

    def at(row: Row, seconds: float) -> float:
        return float(row[column] * row["step_seconds"] / seconds)

    return at


def methods(found: dict[str, Estimate]) -> str:
    """What the intervals are, for a caption: each method once, with its labels where there are several."""
    labels: dict[str, list[str]] = {}
    for label, estimate in found.items():
        labels.setdefault(f"n = {estimate.n}: {estimate.method}", []).append(label)
    if len(labels) == 1:
        return next(iter(labels))
    return "; ".join(f"{', '.join(sorted(each))}, {method}" for method, each in labels.items())


def _coverage(n: int, k: int) -> float:
    return 1.0 - 2 * sum(comb(n, i) for i in range(k)) / float(2**n)
