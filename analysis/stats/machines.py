"""Whether the machine became faster or slower while a study ran, and whether its devices differ in speed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import expm1, log, sqrt
from statistics import fmean, median
from typing import Literal, NamedTuple

import numpy as np

from analysis.stats.student import Mean

FEWEST_BLOCKS = 3


@dataclass(frozen=True)
class Drift:
    """A trend over blocks.

    Attributes:
        change: relative change of the step time from first to last block; None where it is not tested.
        low, high: ends of its 95 % interval.
        p: p value of no trend.
        blocks: how many are tested; where none are, the most that a group ran in.
        of: blocks in all.
        lacking: what a test lacks: enough blocks, an order in blocks, or a known order; None if tested.
        noisy: groups that were left out, because their runs vary far more than the others'.
        partial: how many were left out, because they lack some of the blocks that are tested.
    """

    change: float | None
    low: float | None
    high: float | None
    p: float | None
    blocks: int = 0
    lacking: Literal["blocks", "order", "unknown"] | None = None
    noisy: tuple[str, ...] = ()
    of: int = 0
    partial: int = 0

    @property
    def drifted(self) -> bool:
        """Whether a trend was found: p is at most 0.05."""
        return self.p is not None and self.p <= 0.05


def drift(seconds: Mapping[tuple[str, int], float]) -> Drift:
    """Test for a straight trend over blocks: of their means, in log seconds, over the same groups.

    The runs of a block share the machine's state, so a block is the unit. Means over the same groups are
    equally uncertain, whether blocks or runs carry the noise; effects of blocks that other groups ran in are
    not, and a line through those would be claimed too often. So the test is of as many runs as some groups
    have in the same blocks, without the other groups and blocks. A group whose runs vary far more than the
    others' would be the trend alone, and is left out.

    Args:
        seconds: per step, by group and block.
    """
    all_blocks = {block for _, block in seconds}
    _, noisy = _steady(
        [TimedRun(group, str(block), seconds[group, block]) for group, block in sorted(seconds)]
    )
    blocks_of: dict[str, set[int]] = {}
    for group, block in sorted(seconds):
        if group not in noisy:
            blocks_of.setdefault(group, set()).add(block)
    most = max(map(len, blocks_of.values()), default=0)
    if most < FEWEST_BLOCKS:
        return Drift(None, None, None, None, most, "blocks", noisy, len(all_blocks))
    # The blocks of some group, and the groups that ran in all of them.
    series = [
        (sorted(own), [group for group, others in blocks_of.items() if others >= own])
        for own in blocks_of.values()
        if len(own) >= FEWEST_BLOCKS
    ]
    blocks, groups = max(series, key=lambda both: (len(both[0]) * len(both[1]), len(both[0])))

    # The slope of the blocks' means over their numbers, with its standard error.
    x = np.asarray(blocks, dtype=float)
    y = np.array([fmean(log(seconds[group, block]) for group in groups) for block in blocks])
    centred = x - x.mean()
    slope = float(centred @ y / (centred @ centred))
    residuals = y - y.mean() - slope * centred
    freedom = len(blocks) - 2
    trend = Mean(slope, sqrt(float(residuals @ residuals) / freedom / float(centred @ centred)), freedom)
    span = blocks[-1] - blocks[0]
    change, (low, high) = expm1(trend.value * span), (expm1(end * span) for end in trend.interval(0.95))
    partial = len(blocks_of) - len(groups)
    return Drift(change, low, high, trend.p_value(), len(blocks), None, noisy, len(all_blocks), partial)


def linked(cells: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
    """The cells of the largest set of columns that rows link with each other; of equal ones, the first.

    Two columns that no chain of common rows joins cannot be told from the rows that they are in.
    """
    cells = set(cells)
    sets: list[tuple[set[str], set[str]]] = []
    for row, column in sorted(cells, key=lambda cell: (cell[1], cell[0])):
        touched = [(rows, columns) for rows, columns in sets if row in rows or column in columns]
        sets = [linked_set for linked_set in sets if linked_set not in touched]
        merged = ({row}.union(*(rows for rows, _ in touched)), {column}.union(*(many for _, many in touched)))
        sets.append(merged)
    sets.sort(key=lambda linked_set: (-len(linked_set[1]), min(linked_set[1])))
    largest = sets[0][0] if sets else set()
    return {cell for cell in cells if cell[0] in largest}


_FREEDOM = 3  # degrees of freedom of the residuals
# How many times the spread of the other groups' runs a group's may be, by its number of runs: the spread of
# three is often far from the true one, that of two too often.
_NOISIER = {3: 15}
_NOISIER_OF_MORE = 5


class TimedRun(NamedTuple):
    """A run: its group, its device, and its seconds per step or token."""

    group: str
    device: str
    seconds: float


@dataclass(frozen=True)
class Devices:
    """How devices differ.

    Attributes:
        count: devices that were compared.
        spread: by which share steps take longer on the slowest than on the fastest; None if not tested.
        low, high: ends of its 95 % interval.
        p: p value of no difference between any of them.
        noisy: groups that were left out, because their runs vary far more than the others'.
        effects: log seconds of each device that was compared, groups removed: only differences count.
    """

    count: int
    spread: float | None
    low: float | None
    high: float | None
    p: float | None
    noisy: tuple[str, ...]
    effects: dict[str, float] = field(default_factory=dict)

    @property
    def differ(self) -> bool:
        """Whether a difference was found: p is at most 0.05."""
        return self.p is not None and self.p <= 0.05


def devices(runs: Sequence[TimedRun]) -> Devices:
    """Test for any difference of the devices' log seconds, with groups' differences removed.

    The F test is of all effects of devices at once; the interval is Scheffe's, which holds for all
    differences at once, since slowest and fastest are picked after the fact. Groups that vary far more than
    the others are left out: their noise would hide what the others show. So are runs that nothing confirms,
    whose noise is fitted whole as the effect of a group or a device (leverage 1): a group's only run, or the
    only one that links a device with the rest; and devices that no group links with the rest.
    """
    runs, noisy = _steady(runs)
    design = _device_and_group_columns(runs)
    leverages = np.einsum("ij,jk,ik->i", design, np.linalg.pinv(design.T @ design), design)
    runs = [run for run, leverage in zip(runs, leverages.tolist(), strict=True) if leverage < 1 - 1e-6]
    comparable = linked((run.group, run.device) for run in runs)
    runs = [run for run in runs if (run.group, run.device) in comparable]
    names = sorted({run.device for run in runs})
    count = len(names)
    if count < 2:
        return Devices(count, None, None, None, None, noisy)

    design, logs = _device_and_group_columns(runs), _logs(runs)
    freedom = len(runs) - int(np.linalg.matrix_rank(design))
    if freedom < _FREEDOM:
        return Devices(count, None, None, None, None, noisy)
    from scipy.special import fdtrc, fdtri

    inverse = np.linalg.pinv(design.T @ design)
    effects, covariance = (inverse @ design.T @ logs)[:count], inverse[:count, :count]

    # The F test, and how many standard errors Scheffe's interval reaches to either side.
    residuals, of_groups_alone = _residuals(design, logs), _residuals(_group_columns(runs), logs)
    unexplained = float(residuals @ residuals)
    explained = max(0.0, float(of_groups_alone @ of_groups_alone) - unexplained)
    variance = unexplained / freedom
    f = explained / (count - 1) / variance if variance else float("inf") if explained else 0.0
    p = float(fdtrc(count - 1, freedom, f))
    reach = sqrt((count - 1) * float(fdtri(count - 1, freedom, 0.95)) * variance)

    # Slowest minus fastest in log seconds, and its interval: no pair's lower end is above it.
    differences = effects[:, None] - effects[None, :]
    variances = np.diag(covariance)
    half = reach * np.sqrt(np.maximum(0, variances[:, None] + variances[None, :] - 2 * covariance))
    spread, high = float(differences.max()), float((differences + half).max())
    low = max(0.0, float((differences - half).max()))
    by_name = dict(zip(names, effects.tolist(), strict=True))
    return Devices(count, expm1(spread), expm1(low), expm1(high), p, noisy, by_name)


def _steady(runs: Sequence[TimedRun]) -> tuple[list[TimedRun], tuple[str, ...]]:
    """The runs without those of far noisier groups, and the labels of these.

    The spread is first that around each group's own mean, then that of what devices leave unexplained.
    """
    steady = list(runs)
    for design in (_group_columns, _device_and_group_columns):
        if not steady:
            break
        residuals: dict[str, list[float]] = {}
        for run, value in zip(steady, _residuals(design(steady), _logs(steady)), strict=True):
            residuals.setdefault(run.group, []).append(value)
        spreads = {
            group: sqrt(sum(value**2 for value in values) / (len(values) - 1))
            for group, values in residuals.items()
            if len(values) >= min(_NOISIER)
        }
        noisy = set()
        for group, spread in spreads.items():
            others = [spread_of_other for other, spread_of_other in spreads.items() if other != group]
            most = _NOISIER.get(len(residuals[group]), _NOISIER_OF_MORE)
            if len(others) > 1 and spread > most * median(others):
                noisy.add(group)
        steady = [run for run in steady if run.group not in noisy]
    groups = {run.group for run in steady}
    return steady, tuple(dict.fromkeys(run.group for run in runs if run.group not in groups))


def _logs(runs: Sequence[TimedRun]) -> np.ndarray:
    return np.log([run.seconds for run in runs])


def _group_columns(runs: Sequence[TimedRun]) -> np.ndarray:
    """Shape (runs, groups): 1 where the run is of the group."""
    return _indicators([run.group for run in runs])


def _device_and_group_columns(runs: Sequence[TimedRun]) -> np.ndarray:
    """Shape (runs, devices + groups), devices first."""
    return np.hstack([_indicators([run.device for run in runs]), _group_columns(runs)])


def _indicators(names: Sequence[str]) -> np.ndarray:
    """Shape (names, different names): 1 where the name is that of the column."""
    columns = {name: place for place, name in enumerate(sorted(set(names)))}
    design: np.ndarray = np.eye(len(columns))[[columns[name] for name in names]]
    return design


def _residuals(design: np.ndarray, logs: np.ndarray) -> np.ndarray:
    """What least squares leaves of the logarithms."""
    residuals: np.ndarray = logs - design @ np.linalg.lstsq(design, logs, rcond=None)[0]
    return residuals
