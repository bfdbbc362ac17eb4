"""Within one run: the median of its records, and an interval that autocorrelation does not spoil."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from analysis.stats.estimate import CONFIDENCE, Estimate, at_rank, median
from analysis.stats.student import quantiles
from model.record.units import counted

FEWEST = (
    24  # records; with fewer, an interval cannot hold the truth in 95 % of runs at an autocorrelation of 0.8
)


class Error(NamedTuple):
    """How far the mean of one run's values may be from the truth, each of shape (...)."""

    variance: np.ndarray
    freedom: np.ndarray


def within_run(values: Sequence[float]) -> Estimate:
    """Median over one run's records in their order, for instance its seconds per step.

    The interval says how steady this run was, not what another run would give. It is refused below 24
    records.

    Raises:
        ValueError: no values.
    """
    ends = interval(values, CONFIDENCE)
    if ends is None:
        reason = f"no interval: one run, {counted(len(values), 'record')}, at least {FEWEST} are needed"
        return Estimate(median(values), None, None, 1, reason)
    method = (
        f"95 % interval over {len(values)} records of one run, allowing for their autocorrelation: "
        "not what another run would give"
    )
    return Estimate(median(values), *ends, 1, method)


def interval(values: Sequence[float], confidence: float) -> tuple[float, float] | None:
    """Ends of the interval of the median over one run's records; None if they are too few."""
    if len(values) < FEWEST:
        return None
    ordered = np.sort(np.asarray(values, dtype=float))
    middle, half = (len(values) - 1) / 2, float(half_width(np.asarray(values, dtype=float), confidence))
    return at_rank(ordered, middle - half), at_rank(ordered, middle + half)


def interval_of_mean(values: Sequence[float], confidence: float) -> tuple[float, float] | None:
    """Ends of the interval of the mean over one run's records; None if they are too few."""
    if len(values) < FEWEST:
        return None
    series = np.asarray(values, dtype=float)
    found = error_of_mean(series)
    half = float(quantiles((1 + confidence) / 2, found.freedom) * np.sqrt(found.variance))
    return float(series.mean()) - half, float(series.mean()) + half


def half_width(values: np.ndarray, confidence: float) -> np.ndarray:
    """Half the width of the median's interval in ranks, at most to the smallest and the largest value.

    The number of records below the true median varies as a sum of signs does, whatever their distribution.

    Args:
        values: of shape (..., n), each row the records of a run.
        confidence: of the two-sided interval.
    """
    n = values.shape[-1]
    found = error_of_mean(np.sign(values - np.median(values, axis=-1, keepdims=True)), signs=True)
    below = n / 2 * np.sqrt(found.variance)  # standard deviation of the number below
    half: np.ndarray = np.minimum(quantiles((1 + confidence) / 2, found.freedom) * below, (n - 1) / 2)
    return half


def error_of_mean(series: np.ndarray, signs: bool = False) -> Error:
    """The error of a mean of correlated values.

    It comes from the means of 24 to 47 batches of neighbours (batch means: Flegal & Jones 2010), whose own
    autocorrelation is allowed for as that of an autoregression of order one. That estimate is corrected for
    its bias (Marriott & Pope 1954); the constants are calibrated by simulation, see docs/statistics.md.

    Args:
        series: of shape (..., n), n at least 24.
        signs: whether these are the signs of an autoregression's values.
    """
    length = 2 ** int(np.log2(series.shape[-1] / FEWEST))
    batches = series.shape[-1] // length
    means = series[..., -batches * length :].reshape(*series.shape[:-1], batches, length).mean(-1)
    means = means - means.mean(-1, keepdims=True)
    squares = (means**2).sum(-1)
    lagged = (means[..., 1:] * means[..., :-1]).sum(-1) / np.where(squares > 0, squares, 1)
    correlation = np.clip((batches * lagged + 2) / (batches - 8), -1, 1)
    inflation = _inflation(correlation, batches, signs and length == 1)
    variance = squares / (batches - 1) * inflation * length / series.shape[-1]
    return Error(variance, np.maximum(batches / inflation - 1, 1))


def _inflation(correlation: np.ndarray, n: int, signs: bool) -> np.ndarray:
    """The factor by which autocorrelation inflates the variance of a mean of n values.

    The signs of a Gaussian autoregression are correlated as 2/pi arcsin(r^k) at lag k.
    """
    if signs:
        correlation = np.sin(np.pi / 2 * correlation)
    lags = np.arange(1, n)
    at_lag = np.clip(correlation, -0.4, 0.97)[..., None] ** lags
    if signs:
        at_lag = 2 / np.pi * np.arcsin(at_lag)
    total: np.ndarray = 1 + 2 * (at_lag * (1 - lags / n)).sum(-1)
    return total
