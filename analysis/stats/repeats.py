"""How many repeats a difference needs, and whether those so far pin a ratio down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, expm1, inf, isnan, log, log1p, sqrt

from analysis.stats.student import mean_of, quantile

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


FIRST = 3  # the first look, in pairs of runs


@dataclass(frozen=True)
class Look:
    """What the pairs so far say.

    Attributes:
        ratio: geometric mean of the ratios of the rates, a over b.
        low, high: ends of the interval corrected for all possible looks; None before the first look.
        half_width: half the width of the interval, relative; infinite before the first look.
        pairs: how many there are.
        target: half width of the interval of the ratio, relative.
        looks: how many there are at most, of which the interval's error allows for each.
    """

    ratio: float | None
    low: float | None
    high: float | None
    half_width: float
    pairs: int
    target: float
    looks: int

    @property
    def reached(self) -> bool:
        """Whether the interval is as narrow as the target."""
        return self.half_width <= self.target


def look(pairs: Sequence[tuple[float, float]], target: float, at_most: int, seeds: int = 1) -> Look:
    """The interval of the paired ratio, which holds the truth in 95 % although one stops once it is narrow.

    One looks after every repeat with which there are three pairs or more, up to the `at_most`-th, each time
    at an interval of a smaller error.

    Args:
        pairs: seconds per step of a and of b, in runs that share seed and repeat.
        target: half width of the interval of the ratio, relative.
        at_most: repeats after which nothing more is started; at least 3.
        seeds: pairs that each repeat adds.

    Raises:
        ValueError: a target that is not positive, or fewer than 3 `at_most`.
    """
    if target <= 0 or at_most < FIRST:
        raise ValueError(f"until needs a target above zero and at_most of at least {FIRST}")
    n, looks = len(pairs), _looks(at_most, seeds)
    if n < FIRST:
        return Look(None, None, None, inf, n, target, looks)
    mean = mean_of([log(b / a) for a, b in pairs])
    low, high = mean.interval(1 - error_of_a_look(at_most, seeds))
    return Look(exp(mean.value), exp(low), exp(high), expm1((high - low) / 2), n, target, looks)


def repeats_expected(spread: float, target: float, at_most: int, seeds: int = 1) -> int | None:
    """After how many repeats `look` reaches the target if the log ratios spread as stated; None if never.

    Args:
        spread: standard deviation of the log ratio of a pair of runs.
        target, at_most, seeds: as in `look`.
    """
    tail = error_of_a_look(at_most, seeds) / 2
    for repeat in range(-(-FIRST // seeds), at_most + 1):
        n = repeat * seeds
        if quantile(1 - tail, n - 1) * spread / sqrt(n) <= log1p(target):
            return repeat
    return None


def _looks(at_most: int, seeds: int) -> int:
    """The number of repeats after which there are enough pairs for an interval."""
    return at_most - -(-FIRST // seeds) + 1


def error_of_a_look(at_most: int, seeds: int = 1) -> float:
    """Error of each look's interval that keeps the error after stopping at 5 %.

    5 % over the number of looks (Bonferroni) always does. For three and more, 2 % is enough: one stops at a
    width, of which the mean of normal log ratios is independent. docs/statistics.md has the simulation.

    Args:
        at_most, seeds: as in `look`.
    """
    return max(0.02, 0.05 / _looks(at_most, seeds))
