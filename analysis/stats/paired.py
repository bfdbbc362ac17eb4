"""The ratio of two rates: of two medians, by round in one process, or by seed and repeat over runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, hypot, log

from analysis.stats.estimate import CONFIDENCE, FEWEST_RECORDS, RANGE, Estimate, median, within_run
from analysis.stats.student import mean_of
from model.record.kernels import order_statistic_interval
from model.record.units import counted

RECORDS = "records of one run each"
RUNS = "runs"
ROUNDS = "rounds of one process"


@dataclass(frozen=True)
class Ratio:
    """Rate of a over rate of b, which is seconds of b over seconds of a.

    Attributes:
        ratio: above 1 where a is faster.
        low, high: ends of the 95 % interval; None where it is refused, and then `method` says why.
        n: number of pairs.
        level: what the interval speaks of, RECORDS (these two runs), ROUNDS (this process) or RUNS (any runs
            of the two groups).
        method: how it was made, worded for a caption.
        is_range: whether the ends are those of a range, and of no interval.
    """

    ratio: float
    low: float | None
    high: float | None
    n: int
    level: str
    method: str
    is_range: bool = False


def ratio_of_medians(over: Estimate, under: Estimate) -> Estimate:
    """One median over another, of runs that are not paired, with its 95 % interval.

    Logarithms of the two have independent errors: how far each end of the ratio's interval lies from the
    ratio is the root of the squares of how far the ends that lead there lie from their medians (Zou and
    Donner 2008, Statistics in Medicine 27). Ends of a range are no errors: where either median has one, the
    ratio's range is from its smallest to its largest. There is no interval where either median has none.
    """
    ratio, n = over.median / under.median, min(over.n, under.n)
    if over.low is None or over.high is None or under.low is None or under.high is None:
        return Estimate(ratio, None, None, n, "no interval: a median has none")
    if over.is_range or under.is_range:
        low, high = over.low / under.high, over.high / under.low
        return Estimate(ratio, low, high, n, "no interval, but the extremes of both ends", is_range=True)
    below = hypot(log(over.median / over.low), log(under.high / under.median))
    above = hypot(log(over.high / over.median), log(under.median / under.low))
    how = "95 % interval of the ratio of both medians"
    return Estimate(ratio, ratio * exp(-below), ratio * exp(above), n, how)


def single_pair(a: Sequence[float], b: Sequence[float]) -> Ratio:
    """The ratio of the medians of one run each, which is that of what tables show of the two.

    Args:
        a, b: seconds per token of the records, in their order.

    Raises:
        ValueError: a run has no records.
    """
    ratio = ratio_of_medians(within_run(b), within_run(a))
    if ratio.low is None:
        few = f"{counted(min(len(a), len(b)), 'record')}, at least {FEWEST_RECORDS} are needed"
        return Ratio(ratio.median, None, None, 1, RECORDS, f"medians of one run each, no interval: {few}")
    counts = " and ".join(dict.fromkeys((f"{len(a)}", f"{len(b)}")))
    how = f"95 % interval over {counts} records of one run each, allowing for their autocorrelation"
    if ratio.is_range:
        how = (
            f"no interval, but the extremes of both runs' ends over {counts} records of one run each, as "
            "autocorrelation allows one of them none"
        )
    method = f"{how}: not what another run would give"
    return Ratio(ratio.median, ratio.low, ratio.high, 1, RECORDS, method, ratio.is_range)


def paired_rounds(a: Sequence[float], b: Sequence[float]) -> Ratio:
    """The median ratio of two backends that one process called once each in every round.

    What slows a whole round down, such as a lower clock, cancels: the order is random within each round.
    From 24 rounds on the interval allows for autocorrelation, as that of a run's steps does. With fewer it
    lies between order statistics, which takes rounds to be independent, and needs six.

    Args:
        a, b: seconds of a call, in the order of the rounds.
    """
    ratios = [of_b / of_a for of_a, of_b in zip(a, b, strict=True)]
    if len(ratios) >= FEWEST_RECORDS:
        estimate = within_run(ratios)
        low, high, is_range = estimate.low, estimate.high, estimate.is_range
        how = "95 % interval that allows for autocorrelation"
        if is_range:
            how = f"{RANGE} rounds, whose autocorrelation allows none"
    else:
        low, high = order_statistic_interval(ratios) or (None, None)
        is_range = False
        how = "no interval" if low is None else "95 % interval between order statistics"
    return Ratio(median(ratios), low, high, len(ratios), ROUNDS, f"paired by round, {how}", is_range)


def paired_runs(pairs: Sequence[tuple[float, float]]) -> Ratio:
    """The geometric mean of the pairs' ratios, with Student's interval of their logarithms.

    It is exact if the logarithms of the ratios are normal; skewness that both groups share mostly cancels.

    Args:
        pairs: seconds per step of a and of b, in runs that share seed and repeat.

    Raises:
        ValueError: no pairs.
    """
    logs = [log(b / a) for a, b in pairs]
    if not logs:
        raise ValueError("a paired ratio needs at least one pair")
    if len(logs) == 1:
        return Ratio(exp(logs[0]), None, None, 1, RUNS, "no interval: one pair of runs")
    mean = mean_of(logs)
    low, high = mean.interval(CONFIDENCE)
    method = f"95 % t interval of the log ratio over {len(logs)} pairs of runs"
    return Ratio(exp(mean.value), exp(low), exp(high), len(logs), RUNS, method)
