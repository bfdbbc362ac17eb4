"""Simulations in bulk, for the tests and benchmarks/coverage.py: each row of (runs, n) is a run or a sample."""

from __future__ import annotations

from math import sqrt

import numpy as np

from analysis.stats.estimate import FEWEST_RUNS, half_width, interpolated_rank
from analysis.stats.student import quantile


def autoregression(draw: np.random.Generator, runs: int, n: int, correlation: float) -> np.ndarray:
    """Standard normal values whose neighbours have this correlation: an autoregression of order one."""
    values = draw.standard_normal((runs, n))
    for step in range(1, n):
        values[:, step] = correlation * values[:, step - 1] + sqrt(1 - correlation**2) * values[:, step]
    return values


def with_spikes(draw: np.random.Generator, values: np.ndarray) -> np.ndarray:
    """Three records of a hundred far above all others, as when a node does something else."""
    return np.where(draw.random(values.shape) < 0.03, np.abs(values) + 10, values)


def held_within(values: np.ndarray, truth: float, confidence: float = 0.95) -> float:
    """The share of runs whose interval holds the truth. Where the truth lies among the ranks decides."""
    n, half = values.shape[1], half_width(values, confidence)
    ordered, below = np.sort(values, axis=1), (values < truth).sum(axis=1)
    rows = np.arange(len(values))
    before, after = ordered[rows, np.maximum(below - 1, 0)], ordered[rows, np.minimum(below, n - 1)]
    part = (truth - before) / np.where(after > before, after - before, 1)
    rank = np.where((below > 0) & (below < n), below - 1 + part, np.inf)
    return float((np.abs(rank - (n - 1) / 2) <= half).mean())


def held_between(logs: np.ndarray, truth: float) -> float:
    """The share of samples, logarithms of shape (samples, n), whose interval holds the truth."""
    n = logs.shape[1]
    if n < FEWEST_RUNS:
        half = quantile(0.975, n - 1) * logs.std(axis=1, ddof=1) / sqrt(n)
        return float((np.abs(logs.mean(axis=1) - truth) <= half).mean())
    ordered, depth = np.sort(logs, axis=1), interpolated_rank(n)
    k, part = int(depth), depth - int(depth)
    low = (1 - part) * ordered[:, k] + part * ordered[:, k + 1]
    high = (1 - part) * ordered[:, n - 1 - k] + part * ordered[:, n - 2 - k]
    return float(((low <= truth) & (truth <= high)).mean())
