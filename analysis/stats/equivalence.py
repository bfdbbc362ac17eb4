"""Whether two backends train to the same loss, against a margin that was stated in advance."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, nan, sqrt
from statistics import fmean
from typing import NamedTuple, TypeVar

from analysis.stats.change import CONFIDENCE, beyond
from analysis.stats.paired import RECORDS, RUNS
from analysis.stats.student import mean_of, quantile, variance
from analysis.stats.verdict import Verdict, decimals
from analysis.stats.within import FEWEST, interval_of_mean
from model.record.units import counted

LAST = 0.2  # the part of a run whose losses are compared, from its end
T = TypeVar("T")
Losses = Mapping[int, float]  # step -> nats per token


@dataclass(frozen=True)
class Floor:
    """How much the losses of repeats of one backend differ.

    Attributes:
        nats: standard deviation of the difference of two repeats.
        freedom: its degrees of freedom: repeats minus one, summed over what was repeated.
    """

    nats: float
    freedom: int


class _Found(NamedTuple):
    difference: float
    low: float | None
    high: float | None
    method: str


def noise_floor(repeats: Sequence[Sequence[Losses]]) -> Floor | None:
    """The floor from sets of runs of one backend, seed and data each; None if nothing was repeated.

    Runs that diverged, or logged nothing, are left out.
    """
    sets = [[fmean(_last(run).values()) for run in runs if run] for runs in repeats]
    means = [[mean for mean in each if isfinite(mean)] for each in sets]
    freedom = sum(len(each) - 1 for each in means if each)
    if not freedom:
        return None
    pooled = sum(variance(each) * (len(each) - 1) for each in means if len(each) > 1) / freedom
    return Floor(sqrt(2 * pooled), freedom)


def by_sample(found: Iterable[tuple[Hashable, Losses]]) -> dict[Hashable, list[Losses]]:
    """The losses of runs that saw the same samples, by what decides which these are."""
    groups: dict[Hashable, list[Losses]] = {}
    for sample, losses_of_run in found:
        groups.setdefault(sample, []).append(losses_of_run)
    return groups


def means(repeats: Mapping[Hashable, Sequence[Losses]]) -> dict[Hashable, Losses]:
    """Losses averaged over runs that repeat each other, which are one measurement of what a seed gives.

    That one of them diverged is not averaged away.
    """
    return {key: _mean(runs) for key, runs in repeats.items()}


def _mean(runs: Sequence[Losses]) -> dict[int, float]:
    ends = [end for run in runs if (end := _diverged(run)) is not None]
    if ends:
        return {min(ends): nan}
    steps = set.intersection(*map(set, runs))
    return {step: fmean(run[step] for run in runs) for step in sorted(steps)}


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
    if diverged := _not_finite(shared):
        return diverged
    pairs = [pair for runs in shared if (pair := _common(*runs))]
    if not pairs:
        sentence = "Inconclusive: no two runs saw the same data in the same order at the same steps."
        return Verdict("inconclusive", sentence, None, None, None, 0, RUNS, "not paired")
    differences = [{step: x - y for step, (x, y) in pair.items()} for pair in pairs]
    found = _over_runs(differences) if len(pairs) > 1 else _within(differences[0], floor)
    first, last = min(map(min, differences)), max(map(max, differences))
    return _verdict(found, margin, floor, f"{found.method}, steps {first} to {last}", len(pairs))


def _not_finite(shared: Sequence[tuple[Losses, Losses]]) -> Verdict | None:
    """The verdict if a run has a loss that is not finite; None if all are."""
    ends = [[_diverged(run) for run in pair] for pair in shared]
    if all(end is None for pair in ends for end in pair):
        return None
    apart = [min(end for end in pair if end is not None) for pair in ends if pair[0] != pair[1]]
    level, method = RUNS if len(shared) > 1 else RECORDS, "a loss that is not finite"
    if not apart:
        sentence = "Inconclusive: both losses stop being finite at the same step."
        return Verdict("inconclusive", sentence, None, None, None, len(shared), level, method)
    sentence = f"Different: the loss of one of them is not finite at step {min(apart)}."
    return Verdict("different", sentence, None, None, None, len(shared), level, method)


def _diverged(run: Losses) -> int | None:
    return min((step for step, loss in run.items() if not isfinite(loss)), default=None)


def _common(a: Losses, b: Losses) -> dict[int, tuple[float, float]]:
    return _last({step: (a[step], b[step]) for step in a if step in b})


def _last(run: Mapping[int, T]) -> dict[int, T]:
    after = (1 - LAST) * max(run, default=0)
    return {step: value for step, value in sorted(run.items()) if step > after}


def _over_runs(differences: Sequence[Losses]) -> _Found:
    mean = mean_of([fmean(pair.values()) for pair in differences])
    method = f"90 % t interval of the mean difference over {len(differences)} pairs of runs"
    return _Found(mean.value, *mean.interval(CONFIDENCE), method)


def _within(differences: Losses, floor: Floor | None) -> _Found:
    """The mean over the records of one pair. The floor widens its interval: other pairs differ by it too."""
    mean, n = fmean(differences.values()), len(differences)
    ends = interval_of_mean([differences[step] for step in sorted(differences)], CONFIDENCE)
    if ends is None:
        method = f"no interval: one pair of runs, {counted(n, 'record')}, at least {FEWEST} needed"
        return _Found(mean, None, None, method)
    more = quantile((1 + CONFIDENCE) / 2, floor.freedom) * floor.nats if floor else 0.0
    method = f"90 % interval of the mean difference over {n} records of one pair of runs"
    widened = ", widened by the noise of repeats" if floor else ""
    return _Found(mean, ends[0] - more, ends[1] + more, method + widened)


def _verdict(found: _Found, margin: float | None, floor: Floor | None, method: str, n: int) -> Verdict:
    level = RUNS if n > 1 else RECORDS
    noise = f" Repeats of one backend differ by {floor.nats:.2g} nats (standard deviation)." if floor else ""
    value, low, high, _ = found
    if low is None or high is None:
        sentence = f"Inconclusive: {value:+.4f} nats, {found.method}.{noise}"
        return Verdict("inconclusive", sentence, value, low, high, n, level, method)
    form = f"+.{decimals((low, high), margin, 4)}f"
    seen = f"{value:{form}} nats ({low:{form}} to {high:{form}}; {method})"
    if margin is None:
        sentence = (
            f"Inconclusive: {seen}. Declare `margins: {{loss: NATS}}` in the study before it runs.{noise}"
        )
        return Verdict("inconclusive", sentence, value, low, high, n, level, method)
    kind = beyond(low, high, margin)
    said = {"equivalent": "within", "different": "beyond", "inconclusive": "neither within nor beyond"}[kind]
    sentence = f"{kind.capitalize()}: {seen}, {said} the margin of {margin:.3g} nats.{noise}"
    return Verdict(kind, sentence, value, low, high, n, level, method)
