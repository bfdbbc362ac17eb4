"""Estimates of labelled rows, as charts use them.

Costs (seconds) are summarised and rates derived from them; rates are never averaged (Hoefler & Belli,
"Scientific Benchmarking of Parallel Computing Systems", SC'15, rules 3 to 6).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, TypeVar

from analysis.stats.estimate import Estimate, over_runs, within_run

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
R = TypeVar("R", bound=Mapping[str, Any])  # a row
Row = dict[str, Any]
Quantity = Callable[[Row, float], float]  # (a run's row, seconds per step) -> value, monotone in the seconds


def estimates(rows: list[Row], value: Quantity) -> dict[str, Estimate]:
    """A quantity derived from the median step time, by label: over runs, or within the only run.

    Args:
        rows: one per run, with label, step_seconds and counted_step_seconds.
        value: the quantity.
    """
    by_group = {}
    for label, runs in by_label(rows).items():
        if len(runs) > 1:
            by_group[label] = over_runs([value(row, row["step_seconds"]) for row in runs])
        else:
            (only,) = runs
            by_group[label] = within_run(only["counted_step_seconds"]).map(partial(value, only))
    return by_group


def by_label(rows: Iterable[R]) -> dict[str, list[R]]:
    """The rows of each label, both in the order in which they come."""
    return grouped(rows, itemgetter("label"))


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """The items of each key, both in the order in which they come."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def middle(rows: Sequence[R], whole: Callable[[R], float]) -> R:
    """The run whose whole is the median: the parts of one run add up, medians of parts do not.

    Of two in the middle the smaller.
    """
    return sorted(rows, key=lambda row: (whole(row), row["run_id"]))[(len(rows) - 1) // 2]


def paired_by(runs: Sequence[R]) -> dict[Hashable, R]:
    """The runs of one group by what they are paired by: seed and repeat.

    By their ids, which pair with none, where several share those or one of several has no seed, as imported
    logs: nothing says that the same steps of two such runs saw the same documents.
    """
    keys = [(run["seed"], run["repeat"]) for run in runs]
    unsure = len(set(keys)) < len(keys)
    several = len(runs) > 1
    return {
        run["run_id"] if unsure or (several and run["seed"] is None) else key: run
        for key, run in zip(keys, runs, strict=True)
    }


def rate(column: str) -> Quantity:
    """The rate in a column, scaled from the run's median step time to another one.

    The formula of the rate itself is in views.sql.
    """

    def at(row: Row, seconds: float) -> float:
        return float(row[column] * row["step_seconds"] / seconds)

    return at
