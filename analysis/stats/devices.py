"""Whether the devices of one study differ in speed, from runs of its groups on several of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import expm1, sqrt
from statistics import median
from typing import NamedTuple

import numpy as np

from analysis.stats.drift import linked

FEWEST = 3  # degrees of freedom of the residuals
_NOISIER = 5  # times the spread of the other groups' runs, beyond which a group is left out
_JUDGED = 4  # runs of a group: the spread of fewer is far from the true one too often


class Timed(NamedTuple):
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
        found: whether p is at most 0.05.
        noisy: groups that were left out, because their runs vary far more than the others'.
        effects: log seconds of each device that was compared, groups removed: only differences count.
    """

    count: int
    spread: float | None
    low: float | None
    high: float | None
    p: float | None
    found: bool
    noisy: tuple[str, ...]
    effects: dict[str, float] = field(default_factory=dict)


class _Fit(NamedTuple):
    """Least squares on group and device: log seconds of the devices, their covariance without the scale."""

    effects: np.ndarray
    covariance: np.ndarray
    residuals: np.ndarray
    freedom: int


def devices(runs: Sequence[Timed]) -> Devices:
    """Test for any difference of the devices' log seconds, with groups' differences removed.

    The F test is of all effects of devices at once; the interval is Scheffe's, which holds for all
    differences at once, since slowest and fastest are picked after the fact. A group of one run says
    nothing and is left out; so are groups that vary far more than the others, whose noise would hide what the
    others show, and devices that no group links with the rest.
    """
    runs, noisy = _steady(_repeated(runs))
    kept = linked((run.group, run.device) for run in runs)
    runs = [run for run in runs if (run.group, run.device) in kept]
    names = sorted({run.device for run in runs})
    count = len(names)
    if count < 2 or (fit := _fit(runs)).freedom < FEWEST:
        return Devices(count, None, None, None, None, False, noisy)
    p, reach = _tested(runs, fit)
    spread, low, high = _range(fit, reach)
    effects = dict(zip(names, fit.effects.tolist(), strict=True))
    return Devices(count, expm1(spread), expm1(low), expm1(high), p, p <= 0.05, noisy, effects)


def _repeated(runs: Sequence[Timed]) -> list[Timed]:
    """The runs of groups that have several."""
    counts = Counter(run.group for run in runs)
    return [run for run in runs if counts[run.group] > 1]


def _steady(runs: Sequence[Timed]) -> tuple[list[Timed], tuple[str, ...]]:
    """The runs without those of far noisier groups, and the labels of these.

    The spread is first that around each group's own mean, then that of what devices leave unexplained.
    """
    left = list(runs)
    for design in (_of_groups, _of_both):
        if not left:
            break
        spreads = _spreads(left, _residuals(design(left), _logs(left)))
        noisy = {group for group in spreads if _stands_out(group, spreads)}
        left = [run for run in left if run.group not in noisy]
    there = {run.group for run in left}
    return left, tuple(dict.fromkeys(run.group for run in runs if run.group not in there))


def _stands_out(group: str, spreads: dict[str, float]) -> bool:
    others = [spread for name, spread in spreads.items() if name != group]
    return len(others) > 1 and spreads[group] > _NOISIER * median(others)


def _spreads(runs: Sequence[Timed], residuals: np.ndarray) -> dict[str, float]:
    """The standard deviation of the residuals of each group with enough runs."""
    found: dict[str, list[float]] = {}
    for run, value in zip(runs, residuals, strict=True):
        found.setdefault(run.group, []).append(value)
    return {
        group: sqrt(sum(value**2 for value in values) / (len(values) - 1))
        for group, values in found.items()
        if len(values) >= _JUDGED
    }


def _fit(runs: Sequence[Timed]) -> _Fit:
    design, count = _of_both(runs), len({run.device for run in runs})
    inverse = np.linalg.pinv(design.T @ design)
    logs = _logs(runs)
    effects = (inverse @ design.T @ logs)[:count]
    freedom = len(runs) - int(np.linalg.matrix_rank(design))
    return _Fit(effects, inverse[:count, :count], _residuals(design, logs), freedom)


def _tested(runs: Sequence[Timed], fit: _Fit) -> tuple[float, float]:
    """The p value of the F test, and how many standard errors Scheffe's interval reaches to either side."""
    from scipy.special import fdtrc, fdtri

    alone = _residuals(_of_groups(runs), _logs(runs))
    among = len(fit.effects) - 1
    left = float(fit.residuals @ fit.residuals)
    explained = max(0.0, float(alone @ alone) - left)
    variance = left / fit.freedom
    f = explained / among / variance if variance else float("inf") if explained else 0.0
    reach = sqrt(among * float(fdtri(among, fit.freedom, 0.95)) * variance)
    return float(fdtrc(among, fit.freedom, f)), reach


def _range(fit: _Fit, reach: float) -> tuple[float, float, float]:
    """Slowest minus fastest in log seconds, and its interval: no pair's lower end is above it."""
    apart = fit.effects[:, None] - fit.effects[None, :]
    own = np.diag(fit.covariance)
    half = reach * np.sqrt(np.maximum(0, own[:, None] + own[None, :] - 2 * fit.covariance))
    return float(apart.max()), max(0.0, float((apart - half).max())), float((apart + half).max())


def _logs(runs: Sequence[Timed]) -> np.ndarray:
    return np.log([run.seconds for run in runs])


def _of_groups(runs: Sequence[Timed]) -> np.ndarray:
    """Shape (runs, groups): 1 where the run is of the group."""
    return _ones([run.group for run in runs])


def _of_both(runs: Sequence[Timed]) -> np.ndarray:
    """Shape (runs, devices + groups), devices first."""
    return np.hstack([_ones([run.device for run in runs]), _of_groups(runs)])


def _ones(names: Sequence[str]) -> np.ndarray:
    known = {name: place for place, name in enumerate(sorted(set(names)))}
    found: np.ndarray = np.eye(len(known))[[known[name] for name in names]]
    return found


def _residuals(design: np.ndarray, logs: np.ndarray) -> np.ndarray:
    """What least squares leaves of the logarithms."""
    found: np.ndarray = logs - design @ np.linalg.lstsq(design, logs, rcond=None)[0]
    return found
