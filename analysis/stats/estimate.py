"""Medians with their intervals: over independent runs, or over the records of one run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import comb, exp, log, sqrt
from typing import NamedTuple

import numpy as np

from analysis.stats.student import mean_of, quantiles
from model.record.units import counted

CONFIDENCE = 0.95
RANGE = "no interval, but the range of all"  # begins the method of a range of values
FEWEST_RUNS = 6  # the range of fewer holds the median with less than 95 %
# With fewer, an interval cannot hold the truth in 95 % of runs at an autocorrelation of 0.8.
FEWEST_RECORDS = 24


@dataclass(frozen=True)
class Estimate:
    """A median with an interval.

    Attributes:
        median: in the unit of the values.
        low, high: ends of the interval; None where it is refused, and then `method` says why.
        n: number of runs.
        method: what the interval is, worded for a caption.
        is_range: whether the ends are the smallest and the largest value, and of no interval.
        range_of_runs: the same with the smallest and the largest run; None of one run's records.
    """

    median: float
    low: float | None
    high: float | None
    n: int
    method: str
    is_range: bool = False
    range_of_runs: Estimate | None = None

    @property
    def telling(self) -> Estimate:
        """The estimate, with the range of its runs in place of an interval that is wider than its value.

        Such an interval says nothing; without any, the least certain value would look like a certain one.
        """
        if self.low is None or self.high is None or self.high - self.low <= abs(self.median):
            return self
        if self.is_range and self.n > 1:
            return self
        return self.range_of_runs or replace(
            self,
            low=None,
            high=None,
            is_range=False,
            method=f"no interval: with n = {self.n} it is wider than the value",
        )

    def map(self, function: Callable[[float], float]) -> Estimate:
        """The estimate of a monotone function of the value: the median and the interval carry over."""
        ends = [function(end) for end in (self.low, self.high) if end is not None]
        low, high = (min(ends), max(ends)) if ends else (None, None)
        runs = self.range_of_runs and self.range_of_runs.map(function)
        return replace(self, median=function(self.median), low=low, high=high, range_of_runs=runs)

    def overlaps(self, other: Estimate) -> bool:
        """Whether two intervals have a value in common; what has no interval is its median."""
        low, high = (self.median if end is None else end for end in (self.low, self.high))
        lower, higher = (other.median if end is None else end for end in (other.low, other.high))
        return low <= higher and lower <= high


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
    values_known = [value for value in values if value is not None]
    return median(values_known) if values_known else None


def at_rank(ordered: np.ndarray, rank: float, ratios: bool = True) -> float:
    """The value at a rank, counted from 0, between two values on a logarithmic scale as for `median`."""
    below = min(int(rank), len(ordered) - 2)
    low, high, part = float(ordered[below]), float(ordered[below + 1]), rank - below
    return low * (high / low) ** part if ratios and ordered[0] > 0 else low + (high - low) * part


def over_runs(values: Sequence[float], ratios: bool = True, each: str = "run") -> Estimate:
    """Median over independent runs with its 95 % interval.

    From six runs it lies between order statistics and assumes no distribution: the k-th smallest and k-th
    largest of n values enclose the median with probability 1 - 2 P(X < k), X binomial(n, 1/2), and the ends
    lie between those of two such intervals, so as to reach 95 % (Hettmansperger & Sheather 1986). Two to
    five runs get Student's interval of the mean logarithm, which assumes that logarithms are normal.

    Args:
        ratios: as for `median`. Without them the interval is of the mean, and assumes that values are normal.
        each: what a value is of.

    Raises:
        ValueError: no values.
    """
    middle, n = median(values, ratios), len(values)
    if n == 1:
        return Estimate(middle, None, None, 1, f"no interval: one {each}")
    why = f"{RANGE} {n} {each}s, as the interval is wider than the value"
    of_all = Estimate(middle, min(values), max(values), n, why, is_range=True)
    if n < FEWEST_RUNS:
        logs = ratios and min(values) > 0
        low, high = mean_of([log(value) for value in values] if logs else values).interval(CONFIDENCE)
        if logs:
            low, high = exp(low), exp(high)
        of, assumed = ("geometric mean", "their logs are normal") if logs else ("mean", "they are normal")
        return Estimate(
            middle,
            low,
            high,
            n,
            f"95 % t interval of the {of} over {n} {each}s, which assumes that {assumed}",
            range_of_runs=of_all,
        )
    ordered, depth = np.sort(np.asarray(values, dtype=float)), interpolated_rank(n)
    low, high = (at_rank(ordered, rank, ratios) for rank in (depth, n - 1 - depth))
    how = f"95 % interval between order statistics of {n} {each}s"
    return Estimate(middle, low, high, n, how, range_of_runs=of_all)


@lru_cache
def interpolated_rank(n: int) -> float:
    """Rank, counted from 0, of the lower end; the upper end's is as far from the top."""
    k = max(k for k in range(1, n // 2 + 1) if _coverage(n, k) >= CONFIDENCE)
    wide, narrow = _coverage(n, k), _coverage(n, k + 1)
    part = (wide - CONFIDENCE) / (wide - narrow)
    return k - 1 + (n - k) * part / (k + (n - 2 * k) * part)


def _coverage(n: int, k: int) -> float:
    return 1.0 - 2 * sum(comb(n, i) for i in range(k)) / float(2**n)


class MeanError(NamedTuple):
    """How far the mean of one run's values may be from the truth, each of shape (...)."""

    variance: np.ndarray
    freedom: np.ndarray


def within_run(values: Sequence[float]) -> Estimate:
    """Median over one run's records in their order, for instance its seconds per step.

    The interval says how steady this run was, not what another run would give. It is refused below 24
    records. Where it would go beyond all of them, the ends are their range.

    Raises:
        ValueError: no values.
    """
    if len(values) < FEWEST_RECORDS:
        reason = (
            f"no interval: one run, {counted(len(values), 'record')}, at least {FEWEST_RECORDS} are needed"
        )
        return Estimate(median(values), None, None, 1, reason)
    series = np.asarray(values, dtype=float)
    ordered, middle, half = np.sort(series), (len(values) - 1) / 2, float(half_width(series, CONFIDENCE))
    low, high = at_rank(ordered, middle - half), at_rank(ordered, middle + half)
    how = f"95 % interval over {len(values)} records of one run, allowing for their autocorrelation"
    is_range = low < high and half >= middle
    if is_range:
        how = f"{RANGE} {len(values)} records of one run, whose autocorrelation allows none"
    return Estimate(median(values), low, high, 1, f"{how}: not what another run would give", is_range)


def interval_of_mean(values: Sequence[float], confidence: float) -> tuple[float, float] | None:
    """Ends of the interval of the mean over one run's records; None if they are too few."""
    if len(values) < FEWEST_RECORDS:
        return None
    series = np.asarray(values, dtype=float)
    mean_error = error_of_mean(series)
    half = float(quantiles((1 + confidence) / 2, mean_error.freedom) * np.sqrt(mean_error.variance))
    return float(series.mean()) - half, float(series.mean()) + half


def half_width(values: np.ndarray, confidence: float) -> np.ndarray:
    """Half the width of the median's interval in ranks, at most to the smallest and the largest value.

    The number of records below the true median varies as a sum of signs does, whatever their distribution.

    Args:
        values: of shape (..., n), each row the records of a run.
        confidence: of the two-sided interval.
    """
    n = values.shape[-1]
    mean_error = error_of_mean(np.sign(values - np.median(values, axis=-1, keepdims=True)), signs=True)
    below = n / 2 * np.sqrt(mean_error.variance)  # standard deviation of the number below
    half: np.ndarray = np.minimum(quantiles((1 + confidence) / 2, mean_error.freedom) * below, (n - 1) / 2)
    return half


def error_of_mean(series: np.ndarray, signs: bool = False) -> MeanError:
    """The error of a mean of correlated values.

    It comes from the means of 24 to 47 batches of neighbours (batch means: Flegal & Jones 2010), whose own
    autocorrelation is allowed for as that of an autoregression of order one. That estimate is corrected for
    its bias (Marriott & Pope 1954); the constants are calibrated by simulation, see docs/statistics.md.

    Args:
        series: of shape (..., n), n at least 24.
        signs: whether these are the signs of an autoregression's values.
    """
    length = 2 ** int(np.log2(series.shape[-1] / FEWEST_RECORDS))
    batches = series.shape[-1] // length
    means = series[..., -batches * length :].reshape(*series.shape[:-1], batches, length).mean(-1)
    means = means - means.mean(-1, keepdims=True)
    squares = (means**2).sum(-1)
    lagged = (means[..., 1:] * means[..., :-1]).sum(-1) / np.where(squares > 0, squares, 1)
    correlation = np.clip((batches * lagged + 2) / (batches - 8), -1, 1)
    # The factor by which autocorrelation inflates the variance of a mean. The signs of a Gaussian
    # autoregression are correlated as 2/pi arcsin(r^k) at lag k.
    of_signs = signs and length == 1
    if of_signs:
        correlation = np.sin(np.pi / 2 * correlation)
    lags = np.arange(1, batches)
    at_lag = np.clip(correlation, -0.4, 0.97)[..., None] ** lags
    if of_signs:
        at_lag = 2 / np.pi * np.arcsin(at_lag)
    inflation: np.ndarray = 1 + 2 * (at_lag * (1 - lags / batches)).sum(-1)
    variance = squares / (batches - 1) * inflation * length / series.shape[-1]
    return MeanError(variance, np.maximum(batches / inflation - 1, 1))
