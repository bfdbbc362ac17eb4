"""How precisely past runs compare each group with the baseline, and how many repeats a target needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, comb, log, sqrt
from pathlib import Path
from statistics import variance

from model.record.errors import UserError
from model.record.outcome import Outcome
from model.record.records import RunRecord
from model.record.units import counted
from runner.inputs.design import Design
from runner.inputs.settings import Scalar
from runner.plan.plan import Plan
from runner.state.attempts import label

_MEASURED = """
SELECT run_id, 1 / tokens_per_second FROM runs
WHERE study = $1 AND imported IS NULL AND outcome = 'completed' AND tokens_per_second > 0
"""


@dataclass(frozen=True)
class PairedGroup:
    """A group and the baseline that differs from it by the baseline's factors alone.

    Attributes:
        seeds: of the group.
        pairs: seconds per token of the group and of the baseline, in completed runs that share seed and
            repeat.
    """

    group: str
    base: str
    label: str
    seeds: int
    pairs: tuple[tuple[float, float], ...]


def seconds_per_token(root: Path, study: str) -> dict[str, float]:
    """Seconds per token by id, of the study's completed runs in the database; empty if there is no database.

    Raises:
        UserError: the database cannot be read.
    """
    from analysis.store import database as store

    if not store.database(root).exists():
        return {}
    import duckdb

    try:
        with store.open_for_reading(root) as connection:
            return dict(connection.execute(_MEASURED, [study]).fetchall())
    except (duckdb.Error, OSError) as error:
        raise UserError(f"{store.database(root)}: {store.first_lines(error)}") from error


def comparisons(
    runs: Sequence[RunRecord], baseline: Mapping[str, Scalar], seconds: Mapping[str, float]
) -> list[PairedGroup]:
    """Pair each group that has a baseline with it, in the order of the runs."""
    groups = dict[str, list[RunRecord]]()
    for run in runs:
        groups.setdefault(run.group, []).append(run)
    shared = {  # the factors that a group shares with its baseline
        group: tuple(
            (axis, value) for axis, value in runs[0].factors.items() if axis not in {*baseline, "seed"}
        )
        for group, runs in groups.items()
    }
    picked = {
        group
        for group, runs in groups.items()
        if all(runs[0].factors.get(axis) == value for axis, value in baseline.items())
    }
    bases = {shared[group]: group for group in groups if group in picked}
    measured = {  # by group, then by seed and repeat
        group: {(run.config.seed, run.repeat): seconds[run.run_id] for run in runs if run.run_id in seconds}
        for group, runs in groups.items()
    }
    paired = list[PairedGroup]()
    for group, members in groups.items():
        if group in picked or not (base := bases.get(shared[group])):
            continue
        first, own, of_base = members[0], measured[group], measured[base]
        paired.append(
            PairedGroup(
                group=group,
                base=base,
                label=label(first, [axis for axis in first.factors if axis != "seed"]),
                seeds=len({run.config.seed for run in members}),
                pairs=tuple((own[key], of_base[key]) for key in own if key in of_base),
            )
        )
    return paired


def spread(groups: Sequence[PairedGroup]) -> tuple[float, int] | None:
    """Standard deviation of the log ratio of a pair, pooled over groups, and the number of pairs."""
    logs = [[log(base / own) for own, base in group.pairs] for group in groups if len(group.pairs) > 1]
    if not logs:
        return None
    pairs = sum(map(len, logs))
    squares = sum((len(values) - 1) * variance(values) for values in logs)
    return sqrt(squares / (pairs - len(logs))), pairs


def repeats_forecast(plan: Plan, design: Design) -> list[str]:
    """How many repeats the margin and `until` need, by the spread of past runs of the study."""
    margin, until = design.margins.tokens_per_second, design.until
    if design.baseline is None or not (margin or until):
        return []
    try:
        seconds = seconds_per_token(plan.root, plan.study.name)
    except UserError as error:
        return [f"past runs are not used: {error}"]
    paired = comparisons([run for run, _ in plan.runs], design.baseline, seconds)
    if (pooled := spread(paired)) is None:
        return ["how many repeats the study needs is unknown: no group has two past pairs with the baseline"]
    from analysis.stats.repeats import repeats_expected, repeats_needed

    sigma, pairs = pooled
    lines = [f"{pairs} past pairs of runs spread by {100 * sigma:.2g} % around their ratios"]
    seeds = min((group.seeds for group in paired), default=1)
    if margin:
        # The ranking is corrected for all pairs of groups.
        groups = {run.group for run, _ in plan.runs if Outcome.COMPLETED in run.expected}
        enough = repeats_needed(sigma, margin, comparisons=max(1, comb(len(groups), 2)))
        needed = "more than 10,000 repeats" if enough is None else counted(ceil(enough / seeds), "repeat")
        planned = f"{design.repeats} to {until.at_most}" if until else design.repeats
        aim = f"to rank two groups {100 * margin:.3g} % apart in tokens/s in 80 % of studies"
        lines.append(f"{aim}, each cell needs about {needed}; the study has {planned}")
    if until:
        target = f"an interval of {100 * until.tokens_per_second:.3g} % either way"
        repeats = repeats_expected(sigma, until.tokens_per_second, until.at_most, seeds)
        if repeats is None:
            lines.append(f"{target} cannot be expected within {until.at_most} repeats")
        else:
            lines.append(f"{target} can be expected after about {repeats} repeats")
    return lines
