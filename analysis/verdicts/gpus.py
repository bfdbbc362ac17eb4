"""What the runs of a study show about the GPUs that they were on, and what that does to comparisons. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from math import expm1
from statistics import fmean

from analysis.stats.devices import Devices, Timed, devices
from analysis.stats.verdict import name, p_value, percent
from analysis.verdicts.groups import Row, groups_of
from model.record.units import counted

_NAMED = 3  # groups that a sentence names
_SEEN = 5e-5  # a share that is not nought to the digits of a sentence


@dataclass(frozen=True)
class Gpus:
    """Several GPUs that a study ran on.

    Attributes:
        tested: whether they differ.
        sentence: for the report.
    """

    tested: Devices
    sentence: str

    @property
    def is_limit(self) -> bool:
        """Whether comparisons may contain a difference of the GPUs."""
        return self.tested.found or self.tested.p is None


def gpus_of(rows: Sequence[Row]) -> Gpus | None:
    """Whether the GPUs of a study differ in speed; None where fewer than two are known.

    Args:
        rows: the answer to MEASURED_RUNS.
    """
    known = [run for run in rows if _on_one_known(run)]
    used = len({run["gpu_uuid"] for run in known})
    if used < 2:
        return None
    runs = [_timed(run) for run in known]
    found = devices(runs)
    said = [_tested(found, used), *_left_out(found, len(rows) - len(known))]
    if found.found:
        said.append(_pairs(known, found.effects))
    if found.found or found.p is None:
        said += _confounded(runs, used)
    return Gpus(found, " ".join(said))


def _on_one_known(run: Row) -> bool:
    """Whether all its steps were on one GPU that is known: no attempt on another one came before."""
    return run["gpu_uuid"] is not None and run["gpus"] == 1 and run["resumed_step"] is None


def _timed(run: Row) -> Timed:
    return Timed(run["label"], run["gpu_uuid"], run["step_seconds"] / run["tokens_per_step"])


def _tested(found: Devices, used: int) -> str:
    if found.spread is None or found.low is None or found.high is None or found.p is None:
        return (
            f"Whether the {used} GPUs differ in speed was not tested: "
            "too few groups ran several times and on several GPUs."
        )
    which = (
        f"{found.count} GPUs" if found.count == used else f"{found.count} of {used} GPUs that can be compared"
    )
    began = f"The {which} differ" if found.found else f"No difference between the {which} was found"
    ends = f"{_unsigned(found.low)} to {_unsigned(found.high)} %"
    return (
        f"{began}: steps took {_unsigned(found.spread)} % longer on the slowest than on the fastest "
        f"({ends}; F test, {p_value(found.p)})."
    )


def _unsigned(share: float) -> str:
    return percent(share).removeprefix("+")


def _left_out(found: Devices, unknown: int) -> Iterator[str]:
    if found.noisy:
        verb = "varies" if len(found.noisy) == 1 else "vary"
        yield f"This leaves out {_named(found.noisy)}, which {verb} far more than the other groups."
    if unknown:
        runs = counted(unknown, "run")
        yield f"It leaves out {runs} on several GPUs, on one that is not known, or started again."


def _pairs(runs: Sequence[Row], effects: dict[str, float]) -> str:
    """What the difference does to ratios, which are of runs with the same seed and repeat."""
    places: dict[Hashable, set[str]] = {}
    for group in groups_of(runs).values():
        for key, run in group.pairs.items():
            places.setdefault(key, set()).add(run["gpu_uuid"])
    if all(len(each) == 1 for each in places.values()):
        return "Paired runs were on the same GPU, so this cancels in their ratios."
    return (
        "Pairs of runs on different GPUs include this difference, which widens the intervals; "
        f"{_favoured(runs, effects)}."
    )


def _favoured(runs: Sequence[Row], effects: dict[str, float]) -> str:
    """Which group comes out ahead of which by its share of the GPUs alone, and by how much."""
    placed: dict[str, list[float]] = {}
    for run in runs:
        if run["gpu_uuid"] in effects:
            placed.setdefault(run["label"], []).append(effects[run["gpu_uuid"]])
    shares = {label: fmean(each) for label, each in placed.items()}
    first, last = min(shares, key=shares.__getitem__), max(shares, key=shares.__getitem__)
    ahead = expm1(shares[last] - shares[first])
    if ahead < _SEEN:
        return "it favours no group, as all were spread evenly over the GPUs"
    return (
        "groups were not spread evenly over the GPUs, which alone "
        f"puts {name(first)} {_unsigned(ahead)} % ahead of {name(last)}"
    )


def _confounded(runs: Sequence[Timed], used: int) -> Iterator[str]:
    """Groups that ran on at most half of the GPUs: their difference from others may be the GPUs'."""
    places: dict[str, set[str]] = {}
    for run in runs:
        places.setdefault(run.group, set()).add(run.device)
    few = [group for group, mine in places.items() if 2 * len(mine) <= used]
    if few:
        yield f"{_named(few)} ran on half of the GPUs or fewer: what sets them apart may be the GPUs."


def _named(groups: Sequence[str]) -> str:
    """The groups, set off from the words around them; of many, how many."""
    if len(groups) > _NAMED:
        return f"{len(groups)} groups"
    return ", ".join(map(name, groups))
