"""Whether rates or losses are equivalent, against a margin that was stated in advance."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import expm1, isfinite, nan, sqrt
from statistics import fmean
from typing import TypeVar

from analysis.stats.estimate import FEWEST_RECORDS, interval_of_mean, median
from analysis.stats.paired import RECORDS, RUNS
from analysis.stats.student import log_ratio, mean_of, quantile, variance
from analysis.stats.verdict import (
    Kind,
    MarginTest,
    NoMargin,
    NotFinite,
    NothingPaired,
    Reason,
    SingleRuns,
    TooFewRecords,
    Verdict,
)
from model.record.units import counted

CONFIDENCE = 0.90  # two one-sided tests at 5 % each
TESTS = "two one-sided tests"  # as the method of a verdict says it
LAST = 0.2  # the part of a run whose losses are compared, from its end
T = TypeVar("T")
Losses = Mapping[int, float]  # step -> nats per token


def change(
    before: Mapping[Hashable, float], after: Mapping[Hashable, float], margin: float | None
) -> Verdict:
    """Compare the seconds per step of one group before and after.

    'different' if the whole 90 % interval lies beyond the margin, 'equivalent' if it lies within, which
    are two one-sided tests at 5 % each; 'inconclusive' with a single run on either side.

    Args:
        before, after: seconds per step by what pairs runs; paired where keys are common.
        margin: relative difference of the rate from that before, either way: 0.01 is 0.99 to 1.01 of it.
            None if none was stated: then nothing is tested.

    Raises:
        ValueError: no runs on a side, or a margin that is not positive.
    """
    if not before or not after or (margin is not None and margin <= 0):
        raise ValueError("a change needs runs before and after, and a margin above zero")
    if min(len(before), len(after)) == 1:
        difference = median(list(before.values())) / median(list(after.values())) - 1
        runs = SingleRuns(len(after), len(before))
        how = "single runs are not tested"
        return Verdict("inconclusive", runs, difference, None, None, 1, RUNS, how)
    ratio = log_ratio(after, before)
    value, low, high = map(expm1, (ratio.mean.value, *ratio.mean.interval(CONFIDENCE)))
    method = f"90 % t interval of the log ratio, {ratio.how}: {TESTS} at 5 %"
    if margin is None:
        return Verdict("inconclusive", NoMargin(), value, low, high, ratio.n, RUNS, method)
    kind = beyond(low, high, margin)
    return Verdict(kind, MarginTest(margin), value, low, high, ratio.n, RUNS, method)


def beyond(low: float, high: float, margin: float) -> Kind:
    """Whether an interval lies within the margin around zero, beyond it, or neither."""
    if -margin < low and high < margin:
        return "equivalent"
    return "different" if low > margin or high < -margin else "inconclusive"


@dataclass(frozen=True)
class Floor:
    """How much the losses of repeats of one backend differ.

    Attributes:
        nats: standard deviation of the difference of two repeats.
        freedom: its degrees of freedom: repeats minus one, summed over what was repeated.
    """

    nats: float
    freedom: int


def noise_floor(repeats: Sequence[Sequence[Losses]]) -> Floor | None:
    """The floor from sets of runs of one backend, seed and data each; None if nothing was repeated.

    Runs that diverged, or logged nothing, are left out.
    """
    averages = [[fmean(_last_part(run).values()) for run in runs if run] for runs in repeats]
    finite = [[average for average in of_one if isfinite(average)] for of_one in averages]
    freedom = sum(len(of_one) - 1 for of_one in finite if of_one)
    if not freedom:
        return None
    pooled = sum(variance(of_one) * (len(of_one) - 1) for of_one in finite if len(of_one) > 1) / freedom
    return Floor(sqrt(2 * pooled), freedom)


def by_sample(runs: Iterable[tuple[Hashable, Losses]]) -> dict[Hashable, list[Losses]]:
    """The losses of runs that saw the same samples, by what decides which these are."""
    groups: dict[Hashable, list[Losses]] = {}
    for sample, losses_of_run in runs:
        groups.setdefault(sample, []).append(losses_of_run)
    return groups


def means(repeats: Mapping[Hashable, Sequence[Losses]]) -> dict[Hashable, Losses]:
    """Losses averaged over runs that repeat each other, which are one measurement of what a seed gives.

    That one of them diverged is not averaged away.
    """
    averages: dict[Hashable, Losses] = {}
    for key, runs in repeats.items():
        ends = [end for run in runs if (end := _first_not_finite(run)) is not None]
        steps = set.intersection(*map(set, runs))
        averages[key] = (
            {min(ends): nan} if ends else {step: fmean(run[step] for run in runs) for step in sorted(steps)}
        )
    return averages


def losses(
    a: Mapping[Hashable, Losses],
    b: Mapping[Hashable, Losses],
    margin: float | None,
    floor: Floor | None = None,
) -> Verdict:
    """Compare losses by two one-sided tests at 5 % each (Schuirmann 1987), paired by run and step.

    The unit is a pair of runs: the mean difference over the steps that both logged in the last fifth of the
    run. 'equivalent' if the 90 % interval of its mean lies within the margin, 'different' if it lies beyond.
    With one pair the interval is over its records and speaks of these two runs alone; a floor widens it.

    Args:
        a, b: losses by step of each run, by what makes two runs see the same data: seed, data fingerprint.
        margin: in nats; None if the study stated none.
        floor: of repeats of one backend.
    """
    shared = [(a[key], b[key]) for key in a if key in b]
    ends = [(_first_not_finite(run), _first_not_finite(other)) for run, other in shared]
    if any(end is not None for pair in ends for end in pair):
        apart = [end for pair in ends if pair[0] != pair[1] for end in pair if end is not None]
        kind: Kind = "different" if apart else "inconclusive"
        level = RUNS if len(shared) > 1 else RECORDS
        reason = NotFinite(min(apart, default=None))
        return _verdict(kind, reason, None, None, len(shared), level, "a loss that is not finite", None)
    common = ({step: (run[step], other[step]) for step in run if step in other} for run, other in shared)
    pairs = [pair for steps in common if (pair := _last_part(steps))]
    if not pairs:
        return _verdict("inconclusive", NothingPaired(), None, None, 0, RUNS, "not paired", None)
    differences = [{step: x - y for step, (x, y) in pair.items()} for pair in pairs]
    value = fmean(fmean(pair.values()) for pair in differences)
    ends_90: tuple[float, float] | None
    if len(pairs) > 1:
        ends_90 = mean_of([fmean(pair.values()) for pair in differences]).interval(CONFIDENCE)
        method = f"90 % t interval of the mean difference over {len(pairs)} seeds"
    else:
        ends_90, method = _interval_of_records(differences[0], floor)
    method += f", steps {min(map(min, differences))} to {max(map(max, differences))}"
    level = RUNS if len(pairs) > 1 else RECORDS
    if ends_90 is None:
        return _verdict("inconclusive", TooFewRecords(), value, None, len(pairs), level, method, floor)
    if margin is None:
        return _verdict("inconclusive", NoMargin(), value, ends_90, len(pairs), level, method, floor)
    kind = beyond(*ends_90, margin)
    return _verdict(kind, MarginTest(margin), value, ends_90, len(pairs), level, method, floor)


def _verdict(
    kind: Kind,
    reason: Reason,
    value: float | None,
    ends: tuple[float, float] | None,
    n: int,
    level: str,
    method: str,
    floor: Floor | None,
) -> Verdict:
    low, high = ends or (None, None)
    noise = floor.nats if floor else None
    return Verdict(kind, reason, value, low, high, n, level, method, quantity="loss", noise=noise)


def _first_not_finite(run: Losses) -> int | None:
    """The first step at which the loss is not finite; None if all are."""
    return min((step for step, loss in run.items() if not isfinite(loss)), default=None)


def _last_part(run: Mapping[int, T]) -> dict[int, T]:
    """What belongs to the last fifth of the steps, in order."""
    after = (1 - LAST) * max(run, default=0)
    return {step: value for step, value in sorted(run.items()) if step > after}


def _interval_of_records(differences: Losses, floor: Floor | None) -> tuple[tuple[float, float] | None, str]:
    """The interval over the records of one pair. The floor widens it: other pairs differ by it too."""
    n = len(differences)
    ends = interval_of_mean([differences[step] for step in sorted(differences)], CONFIDENCE)
    if ends is None:
        return (
            None,
            f"no interval: one seed, {counted(n, 'record')}, at least {FEWEST_RECORDS} needed",
        )
    noise = quantile((1 + CONFIDENCE) / 2, floor.freedom) * floor.nats if floor else 0.0
    widened = ", widened by the noise of repeats" if floor else ""
    method = f"90 % interval of the mean difference over {n} records of one seed{widened}"
    return (ends[0] - noise, ends[1] + noise), method
