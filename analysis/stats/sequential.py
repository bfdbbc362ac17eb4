"""Whether the repeats so far pin a ratio down, looked at after each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, expm1, log, log1p, sqrt

from analysis.stats.student import mean_of, quantile

FIRST = 3  # the first look, in pairs of runs


@dataclass(frozen=True)
class Look:
    """What the pairs so far say.

    Attributes:
        ratio: geometric mean of the ratios of the rates, a over b.
        low, high: ends of the interval corrected for all possible looks; None before the first look.
        reached: whether half the width of the interval, relative, is at most the target.
        sentence: for the launcher and the report.
    """

    ratio: float | None
    low: float | None
    high: float | None
    reached: bool
    sentence: str


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
        return Look(None, None, None, False, f"{n} of at least {FIRST} pairs of runs: no interval yet")
    mean = mean_of([log(b / a) for a, b in pairs])
    low, high = mean.interval(1 - error_of_a_look(at_most, seeds))
    half = expm1((high - low) / 2)
    reached = half <= target
    state = "reached" if reached else "not reached"
    sentence = (
        f"{n} pairs of runs: ratio {exp(mean.value):.4g} ({exp(low):.4g} to {exp(high):.4g}), half width "
        f"{100 * half:.2g} %, target {100 * target:.2g} % {state}; corrected for {looks} looks"
    )
    return Look(exp(mean.value), exp(low), exp(high), reached, sentence)


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
