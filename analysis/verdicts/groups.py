"""The groups of a study, what its design declares, and which group each is compared with."""

from __future__ import annotations

import json
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from analysis.stats import Estimate, by_label, grouped, over_runs
from analysis.stats.rows import paired_by
from analysis.verdicts import guard
from analysis.verdicts.guard import Difference, RunSet
from analysis.verdicts.values import Row

FEWEST_SEEDS = 3  # Student's interval of two is 13 times as wide as the gap between them


@dataclass(frozen=True)
class Group:
    """The completed runs that differ by seed and repeat alone."""

    label: str
    runs: Sequence[Row]

    @property
    def factors(self) -> dict[str, Any]:
        """What sets it apart: its factors and scale, without the seed."""
        own = factors(self.runs[0])
        return {name: value for name, value in own.items() if name not in ("seed", "repeat")}

    @property
    def pairs(self) -> dict[Hashable, Row]:
        """The runs by what they are paired by."""
        return paired_by(self.runs)

    @property
    def seconds(self) -> dict[Hashable, float]:
        """Median seconds per token of each run, by what it is paired by."""
        return {key: run["step_seconds"] / run["tokens_per_step"] for key, run in self.pairs.items()}


def groups_of(rows: Sequence[Row]) -> dict[str, Group]:
    """The groups by label, in the order of the rows."""
    return {label: Group(label, runs) for label, runs in by_label(rows).items()}


def declared(rows: Sequence[Row]) -> dict[str, Any] | None:
    """The baseline's factors, as the run that was planned last states them; None without a baseline."""
    newest = max(rows, key=lambda row: row["created_at"], default=None)
    return ((newest and newest["design"]) or {}).get("baseline") or None


def common_margin(rows: Sequence[Row], quantity: str) -> float | None:
    """The margin that all of these runs state; None if they state none, or not the same.

    A margin counts only if it was stated in advance: before any of the runs that it is applied to.
    """
    margins: set[float | None] = {((row["design"] or {}).get("margins") or {}).get(quantity) for row in rows}
    return margins.pop() if len(margins) == 1 else None


def looks(rows: Sequence[Row]) -> tuple[float, int] | None:
    """Target and largest number of repeats of `until`, as the run with most repeats has it; None without it.

    One run that states it is enough: somebody looked at the repeats so far, whatever other runs state.
    """
    designs = [(row["design"] or {}).get("until") for row in rows]
    stated_looks = [(until["tokens_per_second"], int(until["at_most"])) for until in designs if until]
    return max(stated_looks, key=lambda until: until[1], default=None)


def counterpart(group: Group, groups: dict[str, Group], baseline: dict[str, Any]) -> Group | None:
    """The one group that differs from this one by the baseline's factors alone; None for a baseline."""
    wanted = group.factors | baseline
    if wanted == group.factors:
        return None
    same = [other for other in groups.values() if other.factors == wanted]
    return same[0] if len(same) == 1 else None


def compared(groups: dict[str, Group], baseline: dict[str, Any] | None) -> list[tuple[Group, Group]]:
    """Each group with the baseline that it is compared with, in the study's order."""
    if not baseline:
        return []
    pairs = [(group, counterpart(group, groups, baseline)) for group in groups.values()]
    return [(group, other) for group, other in pairs if other]


@dataclass(frozen=True)
class Step:
    """Two groups that differ in one setting alone, which the second has as the baseline does.

    Attributes:
        setting: and its value in the first group, by the last part of its name: `float8=rowwise`.
    """

    setting: str
    group: Group
    without: Group


def steps(groups: dict[str, Group], baseline: dict[str, Any] | None) -> list[Step]:
    """Every two groups that are one of the baseline's settings apart, setting by setting.

    None where this tells no more than the comparison with the baseline: where all start from it.
    """
    if not baseline or len(baseline) < 2:
        return []
    last = {name: name.rpartition(".")[2] for name in baseline}
    short = {name: last[name] if [*last.values()].count(last[name]) == 1 else name for name in baseline}

    def setting(name: str, value: Any) -> str:
        text = value if isinstance(value, str) else json.dumps(value)
        return text if name == "attention" else f"{short[name]}={text}"

    apart = [
        Step(setting(name, group.factors[name]), group, without)
        for name, value in baseline.items()
        for group in groups.values()
        if name in group.factors and (without := counterpart(group, groups, {name: value}))
    ]
    against_baseline = {(group.label, other.label) for group, other in compared(groups, baseline)}
    if all((step.group.label, step.without.label) in against_baseline for step in apart):
        return []
    return [step for alike in grouped(apart, lambda step: step.setting).values() for step in alike]


def step_pairs(groups: dict[str, Group], baseline: dict[str, Any] | None) -> list[tuple[Group, Group]]:
    """The groups of all steps: with a setting, and without."""
    return [(step.group, step.without) for step in steps(groups, baseline)]


def differing(a: Group, b: Group) -> list[Difference]:
    """What the guard finds between two groups."""
    return guard.differences(RunSet(a.label, a.runs), RunSet(b.label, b.runs))


def alone(groups: dict[str, Group], baseline: dict[str, Any] | None) -> list[str]:
    """Labels of the groups that are no baseline and lack one to be compared with; none without baselines."""
    if not baseline:
        return []
    others = [group for group in groups.values() if group.factors | baseline != group.factors]
    return [group.label for group in others if counterpart(group, groups, baseline) is None]


def absent(runs: Sequence[Row], baseline: dict[str, Any] | None) -> str | None:
    """Why no group has a baseline: ``the baseline, `attention: cudnn`, has no run in this study``.

    None where the study declares no baseline, and where a run of it completed.

    Args:
        runs: all of the study.
    """
    runs_of_it = [run for run in runs if baseline and factors(run) | baseline == factors(run)]
    if not baseline or any(run["outcome"] == "completed" for run in runs_of_it):
        return None
    values = {
        name: value if isinstance(value, str) else json.dumps(value) for name, value in baseline.items()
    }
    named = ", ".join(f"{name}: {value}" for name, value in values.items())
    return f"the baseline, `{named}`, has no {'completed run' if runs_of_it else 'run'} in this study"


def factors(run: Row) -> dict[str, Any]:
    """The factors of a run, and its scale."""
    return {**run["factors"], "scale": run["scale"]}


def final_loss(runs: Sequence[Row]) -> Estimate | None:
    """The median over seeds of the last step's loss; repeats of a seed count once, as their mean.

    Fewer than three seeds have no interval.
    """
    seeds: dict[int | None, list[float]] = {}
    for run in runs:
        if run["final_loss"] is not None:
            seeds.setdefault(run["seed"], []).append(run["final_loss"])
    means = [fmean(values) for values in seeds.values()]
    if not means:
        return None
    estimate = over_runs(means, ratios=False, each="seed")
    if 1 < estimate.n < FEWEST_SEEDS:
        return replace(estimate, low=None, high=None, method=f"no interval: {estimate.n} seeds")
    return estimate


def peak_memory_gib(runs: Sequence[Row]) -> Estimate | None:
    """The median over the runs that have a reading; None if none has."""
    readings = [run["peak_memory_bytes"] / 2**30 for run in runs if run["peak_memory_bytes"]]
    return over_runs(readings) if readings else None
