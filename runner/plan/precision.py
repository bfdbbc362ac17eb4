"""How precisely past runs compare each group with the baseline, and how many repeats a target needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, comb, log, sqrt
from pathlib import Path
from statistics import variance

from model.record.errors import UserError
from model.record.records import Outcome, RunRecord
from model.record.units import counted
from runner.inputs.design import Design, Until
from runner.inputs.settings import Scalar
from runner.plan.plan import Plan
from runner.state.tasks import label

_MEASURED = """
SELECT run_id, 1 / tokens_per_second FROM runs
WHERE study = $1 AND imported IS NULL AND outcome = 'completed' AND tokens_per_second > 0
"""


@dataclass(frozen=True)
class Comparison:
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
) -> list[Comparison]:
    """Each group that has a baseline, in the order of the runs."""
    groups = dict[str, list[RunRecord]]()
    for run in runs:
        groups.setdefault(run.group, []).append(run)
    picked = {
        group: all(mine[0].factors.get(axis) == value for axis, value in baseline.items())
        for group, mine in groups.items()
    }
    bases = {_rest(mine[0], baseline): group for group, mine in groups.items() if picked[group]}
    return [
        Comparison(
            group=group,
            base=base,
            label=label(mine[0], [axis for axis in mine[0].factors if axis != "seed"]),
            seeds=len({run.config.seed for run in mine}),
            pairs=_pairs(mine, groups[base], seconds),
        )
        for group, mine in groups.items()
        if not picked[group] and (base := bases.get(_rest(mine[0], baseline)))
    ]


def _rest(run: RunRecord, baseline: Mapping[str, Scalar]) -> tuple[tuple[str, Scalar], ...]:
    """The factors that a group shares with its baseline."""
    return tuple((axis, value) for axis, value in run.factors.items() if axis not in {*baseline, "seed"})


def _pairs(
    group: Sequence[RunRecord], base: Sequence[RunRecord], seconds: Mapping[str, float]
) -> tuple[tuple[float, float], ...]:
    known = {(run.config.seed, run.repeat): seconds[run.run_id] for run in base if run.run_id in seconds}
    return tuple(
        (seconds[run.run_id], known[key])
        for run in group
        if run.run_id in seconds and (key := (run.config.seed, run.repeat)) in known
    )


def spread(found: Sequence[Comparison]) -> tuple[float, int] | None:
    """Standard deviation of the log ratio of a pair, pooled over groups, and the number of pairs."""
    logs = [[log(base / own) for own, base in each.pairs] for each in found if len(each.pairs) > 1]
    if not logs:
        return None
    pairs = sum(map(len, logs))
    squares = sum((len(values) - 1) * variance(values) for values in logs)
    return sqrt(squares / (pairs - len(logs))), pairs


def forecast(plan: Plan, design: Design) -> list[str]:
    """How many repeats the margin and `until` need, by the spread of past runs of the study."""
    margin, until = design.margins.tokens_per_second, design.until
    if design.baseline is None or not (margin or until):
        return []
    try:
        seconds = seconds_per_token(plan.root, plan.study.name)
    except UserError as error:
        return [f"past runs are not used: {error}"]
    found = comparisons([run for run, _ in plan.runs], design.baseline, seconds)
    if (known := spread(found)) is None:
        return ["how many repeats the study needs is unknown: no group has two past pairs with the baseline"]
    sigma, pairs = known
    lines = [f"{pairs} past pairs of runs spread by {100 * sigma:.2g} % around their ratios"]
    seeds = min((each.seeds for each in found), default=1)
    if margin:
        groups = {run.group for run, _ in plan.runs if run.expected_outcome is Outcome.COMPLETED}
        lines.append(_to_find(sigma, margin, len(groups), seeds, design))
    if until:
        lines.append(_to_reach(sigma, until, seeds))
    return lines


def _to_find(sigma: float, margin: float, groups: int, seeds: int, design: Design) -> str:
    """How many repeats the ranking needs; it is corrected for all pairs of groups."""
    from analysis.stats.repeats import repeats_needed

    pairs = repeats_needed(sigma, margin, comparisons=max(1, comb(groups, 2)))
    said = "more than 10,000 repeats" if pairs is None else counted(ceil(pairs / seeds), "repeat")
    planned = f"{design.repeats} to {design.until.at_most}" if design.until else design.repeats
    what = f"to rank two groups {100 * margin:.3g} % apart in tokens/s in 80 % of studies"
    return f"{what}, each cell needs about {said}; the study has {planned}"


def _to_reach(sigma: float, until: Until, seeds: int) -> str:
    from analysis.stats.repeats import repeats_expected

    target = f"an interval of {100 * until.tokens_per_second:.3g} % either way"
    repeats = repeats_expected(sigma, until.tokens_per_second, until.at_most, seeds)
    if repeats is None:
        return f"{target} cannot be expected within {until.at_most} repeats"
    return f"{target} can be expected after about {repeats} repeats"
