"""Between runs: the median and its interval."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import comb, exp, log

import numpy as np

from analysis.stats.estimate import CONFIDENCE, Estimate, at_rank, median
from analysis.stats.student import mean_of

FEWEST = 6  # runs; the range of fewer holds the median with less than 95 %


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
    if n < FEWEST:
        logs = ratios and min(values) > 0
        low, high = _student(values, logs)
        assumed = "their logs are normal" if logs else "they are normal"
        return Estimate(
            middle, low, high, n, f"95 % t interval over {n} {each}s, which assumes that {assumed}"
        )
    ordered, depth = np.sort(np.asarray(values, dtype=float)), interpolated_rank(n)
    low, high = (at_rank(ordered, rank, ratios) for rank in (depth, n - 1 - depth))
    return Estimate(middle, low, high, n, f"95 % interval between order statistics of {n} {each}s")


@lru_cache
def interpolated_rank(n: int) -> float:
    """Rank, counted from 0, of the lower end; the upper end's is as far from the top."""
    k = max(k for k in range(1, n // 2 + 1) if _coverage(n, k) >= CONFIDENCE)
    wide, narrow = _coverage(n, k), _coverage(n, k + 1)
    part = (wide - CONFIDENCE) / (wide - narrow)
    return k - 1 + (n - k) * part / (k + (n - 2 * k) * part)


def _coverage(n: int, k: int) -> float:
    return 1.0 - 2 * sum(comb(n, i) for i in range(k)) / float(2**n)


def _student(values: Sequence[float], logs: bool) -> tuple[float, float]:
    """The median's interval if values are normal, or their logarithms."""
    if not logs:
        return mean_of(values).interval(CONFIDENCE)
    low, high = mean_of([log(value) for value in values]).interval(CONFIDENCE)
    return exp(low), exp(high)
