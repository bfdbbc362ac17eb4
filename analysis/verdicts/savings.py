"""Percent of time and of memory that groups save of what their baselines take, paired."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from analysis.stats import Estimate
from analysis.stats.estimate import median
from analysis.stats.paired import RUNS
from analysis.verdicts.groups import Group, compared, declared, differing, groups_of
from analysis.verdicts.guard import breaking
from analysis.verdicts.rates import ratio_of
from analysis.verdicts.values import Row


class Saving(NamedTuple):
    """Percent that a group saves of what its baseline takes; negative where it takes more."""

    label: str
    baseline: str
    percent: Estimate
    runs: frozenset[str]


def time_saved(rows: Sequence[Row]) -> list[Saving]:
    """Percent of the seconds per token: 100 x (1 - 1 / r) at a ratio r of the rates.

    Args:
        rows: the answer to MEASURED_RUNS.
    """
    savings = []
    for group, base in compared(groups_of(rows), declared(rows)):
        if not breaking(differing(group, base), "speed"):
            ratio = ratio_of(group, base)
            method = f"{ratio.level}: {ratio.method}, of which 1 - 1 / ratio"
            pairs = ratio.n if ratio.level == RUNS else 1
            speed = Estimate(ratio.ratio, ratio.low, ratio.high, pairs, method, ratio.is_range)
            savings.append(_saving(group, base, speed.map(lambda ratio: 100 * (1 - 1 / ratio))))
    return savings


def memory_saved(rows: Sequence[Row]) -> list[Saving]:
    """Percent of the peak: the median over pairs of runs.

    Args:
        rows: the answer to MEASURED_RUNS.
    """
    savings = []
    for group, base in compared(groups_of(rows), declared(rows)):
        sizes = [
            (run["peak_memory_bytes"], base.pairs[key]["peak_memory_bytes"])
            for key, run in group.pairs.items()
            if key in base.pairs
        ]
        percent = [100 * (1 - own / others) for own, others in sizes if own and others]
        if percent:
            estimate = Estimate(median(percent), None, None, len(percent), "none")
            savings.append(_saving(group, base, estimate))
    return savings


def _saving(group: Group, base: Group, percent: Estimate) -> Saving:
    runs = frozenset(run["run_id"] for run in (*group.runs, *base.runs))
    return Saving(group.label, base.label, percent, runs)
