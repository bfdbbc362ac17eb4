"""How many repeats a stated difference needs, from the spread of past runs."""

from __future__ import annotations

from math import isnan, log1p, sqrt

from analysis.stats.student import quantile

MOST = 10_000


def repeats_needed(spread: float, difference: float, power: float = 0.8, comparisons: int = 1) -> int | None:
    """The fewest pairs of runs at which a paired t test finds a difference and its sign.

    Exact for normal log ratios: the test's statistic has a noncentral t distribution with n - 1 degrees of
    freedom and noncentrality log(1 + difference) sqrt(n) / spread.

    Args:
        spread: standard deviation of the log ratio of a pair of runs.
        difference: relative difference of the rates, for example 0.01.
        power: probability with which it should be found.
        comparisons: pairs of groups that the ranking corrects for; Holm's first step is assumed.

    Returns:
        None if more than 10,000 repeats would be needed.

    Raises:
        ValueError: the difference is zero, or the spread negative.
    """
    if difference == 0 or difference <= -1 or spread < 0:
        raise ValueError("a difference needs to be above -1 and not zero, and a spread not negative")
    low, high = 2, 2
    while _power(high, spread, difference, comparisons) < power:
        low, high = high + 1, high * 2
        if high > MOST:
            return None
    while low < high:
        middle = (low + high) // 2
        enough = _power(middle, spread, difference, comparisons) >= power
        low, high = (low, middle) if enough else (middle + 1, high)
    return low


def _power(n: int, spread: float, difference: float, comparisons: int) -> float:
    from scipy.special import nctdtr

    if spread == 0:
        return 1.0
    shift = abs(log1p(difference)) * sqrt(n) / spread
    critical = quantile(1 - 0.025 / comparisons, n - 1)
    missed = float(nctdtr(n - 1, shift, critical))  # NaN where it is far below what a float holds
    return 1.0 if isnan(missed) and shift > critical else 1 - missed
