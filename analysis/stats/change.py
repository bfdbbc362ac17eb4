"""Whether a rate changed between two studies by more than a margin that was stated in advance."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from math import expm1

from analysis.stats.estimate import median
from analysis.stats.paired import RUNS
from analysis.stats.student import Compared, compared
from analysis.stats.verdict import Kind, Verdict, enclosed, in_runs, percent

CONFIDENCE = 0.90  # two one-sided tests at 5 % each
TESTS = "two one-sided tests"  # as the method of a verdict says it


def change(before: Mapping[Hashable, float], after: Mapping[Hashable, float], margin: float) -> Verdict:
    """Compare the seconds per step of one group before and after.

    'different' if the whole 90 % interval lies beyond the margin, 'equivalent' if it lies within, which
    are two one-sided tests at 5 % each; 'observed' with a single run on either side.

    Args:
        before, after: seconds per step by what pairs runs; paired where keys are common.
        margin: relative difference of the rate from that before, either way: 0.01 is 0.99 to 1.01 of it.

    Raises:
        ValueError: no runs on a side, or a margin that is not positive.
    """
    if not before or not after or margin <= 0:
        raise ValueError("a change needs runs before and after, and a margin above zero")
    if min(len(before), len(after)) == 1:
        return _single(before, after)
    return _verdict(compared(after, before), margin)


def _single(before: Mapping[Hashable, float], after: Mapping[Hashable, float]) -> Verdict:
    """The observed change, of medians."""
    difference = median(list(before.values())) / median(list(after.values())) - 1
    runs = in_runs(len(after), len(before))
    sentence = f"Rate {percent(difference)} % {runs}: observed, not tested."
    return Verdict("observed", sentence, difference, None, None, 1, RUNS, "single runs are not tested")


def _verdict(found: Compared, margin: float) -> Verdict:
    mean, n, how = found
    low, high = mean.interval(CONFIDENCE)
    kind = beyond(expm1(low), expm1(high), margin)
    said = {
        "equivalent": "unchanged within",
        "different": f"{'faster' if mean.value > 0 else 'slower'} by more than",
        "inconclusive": "too uncertain for",
    }[kind]
    seen = enclosed(expm1(mean.value), expm1(low), expm1(high), margin)
    sentence = f"Rate {seen}: {said} the margin of {100 * margin:.3g} %."
    method = f"90 % t interval of the log ratio, {how}: {TESTS} at 5 %"
    return Verdict(kind, sentence, expm1(mean.value), expm1(low), expm1(high), n, RUNS, method)


def beyond(low: float, high: float, margin: float) -> Kind:
    """Whether an interval lies within the margin around zero, beyond it, or neither."""
    if -margin < low and high < margin:
        return "equivalent"
    return "different" if low > margin or high < -margin else "inconclusive"
