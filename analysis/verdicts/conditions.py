"""Under which conditions runs were measured: order, drift, load, other users, and several GPUs."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import expm1
from statistics import fmean

from analysis.stats.estimate import median
from analysis.stats.machines import Devices, Drift, TimedRun, devices, drift
from analysis.verdicts.groups import Group, compared, declared, groups_of
from analysis.verdicts.values import Row
from analysis.wording import group_name, p_value, percent
from model.record.units import counted

_BUSY = 0.5  # load per core before a run starts, from which other work takes cores away


def drift_of(rows: Sequence[Row]) -> Drift:
    """Whether steps became slower or faster from block to block.

    Args:
        rows: the answer to MEASURED_RUNS.
    """
    blocks: dict[tuple[str, int], list[float]] = {}
    for group in groups_of(rows).values():
        for run in group.runs:
            if run["block"] is not None:
                seconds = run["step_seconds"] / run["tokens_per_step"]
                blocks.setdefault((group.label, run["block"]), []).append(seconds)
    if not blocks and rows:
        planned = any(row["design"] and row["design"]["order"] for row in rows)
        return Drift(None, None, None, None, lacking="order" if planned else "unknown")
    return drift({key: median(values) for key, values in blocks.items()})


def order_of(rows: Sequence[Row]) -> str:
    """The order in which the runs were started."""
    designs = [row["design"] for row in rows if row["design"] and row["design"]["order"]]
    orders = sorted({design["order"] for design in designs})
    if not orders:
        return "unknown: the records come from other programs, or predate starting orders"
    blocks: dict[int, set[str]] = {}
    for row in rows:
        if row["block"] is not None:
            blocks.setdefault(row["block"], set()).add(row["label"])
    seeds = sorted({design["order_seed"] for design in designs if design["order_seed"] is not None})
    parts = [" and ".join(orders)]
    if blocks:
        # Blocks of launches with `--only` do not have every group.
        labels = {row["label"] for row in rows}
        whole = all(block == labels for block in blocks.values())
        number = f"{len(blocks)} {'block' if len(blocks) == 1 else 'blocks'}"
        parts.append(number + (" of one run of every group" if whole else " without some of the groups"))
    if seeds:
        parts.append(f"shuffled with seed {', '.join(map(str, seeds))}")
    return ", ".join(parts)


def gaps_of(rows: Sequence[Row]) -> dict[str, list[int]]:
    """The blocks that a group lacks and others have, by its label: its median is not of the same GPUs.

    None where every two blocks have a GPU in common.

    Args:
        rows: the answer to MEASURED_RUNS.
    """
    places = _places(rows)
    if all(one & other for one, other in combinations(set(map(frozenset, places.values())), 2)):
        return {}
    ran = {label: {run["block"] for run in group.runs} for label, group in groups_of(rows).items()}
    lacking = {label: sorted(places.keys() - blocks) for label, blocks in ran.items()}
    return {label: blocks for label, blocks in lacking.items() if blocks}


def crossing(rows: Sequence[Row]) -> list[str]:
    """The groups of which a run is compared with one of the baseline in a block on other GPUs, by label.

    Runs are paired by seed and repeat, and two launches with `--only` can plan these in blocks of their own.

    Args:
        rows: the answer to MEASURED_RUNS.
    """
    places = _places(rows)

    def crosses(group: Group, base: Group) -> bool:
        ours, theirs = group.pairs, base.pairs
        blocks = ((ours[key]["block"], theirs[key]["block"]) for key in ours if key in theirs)
        pairs = ((places.get(block), places.get(other)) for block, other in blocks)
        return any(one and two and not one & two for one, two in pairs)

    return [group.label for group, base in compared(groups_of(rows), declared(rows)) if crosses(group, base)]


def _places(rows: Sequence[Row]) -> dict[int, set[tuple[str | None, str | None]]]:
    """Where each block ran: by machine and GPU, since two machines may share a name."""
    places: dict[int, set[tuple[str | None, str | None]]] = {}
    for row in rows:
        if row["block"] is not None and row["started_at"] is not None:
            places.setdefault(row["block"], set()).add((row["node"], row["gpu_uuid"]))
    return places


def load_of(rows: Sequence[Row]) -> str:
    """How busy the machines were before the runs, and who else was on the devices.

    Args:
        rows: the answer to LOADS.
    """
    loads = [
        row["load_before"] / row["cores"] for row in rows if None not in (row["load_before"], row["cores"])
    ]
    text = "load not recorded"
    if loads:
        ends = " to ".join(dict.fromkeys((f"{min(loads):.2g}", f"{max(loads):.2g}")))
        text = f"load before the runs {ends} per core"
        text += _unknown(len(rows) - len(loads))
    users = [row["device_users"] for row in rows if row["device_users"] is not None]
    if users:
        others = sum(1 for count in users if count)
        shared = f"other processes were on the device of {others} of {counted(len(users), 'run')}"
        text += f"; {shared if others else 'no other process was on the devices'}"
        text += _unknown(len(rows) - len(users))
    return text


def busy(rows: Sequence[Row]) -> str | None:
    """A warning if other work may have taken time from the runs; None if nothing recorded says so.

    Args:
        rows: the answer to LOADS.
    """
    loaded = [
        row
        for row in rows
        if (row["load_of_others"] or 0) > _BUSY * (row["cores"] or 1) or (row["device_users"] or 0) > 0
    ]
    if not loaded:
        return None
    return (
        f"When {len(loaded)} of {counted(len(rows), 'completed run')} started, the machine was busy with "
        f"something else (a load above {_BUSY} per core, beyond that of the study's own runs before, or "
        "other processes on the device): their times may be too long."
    )


def _unknown(count: int) -> str:
    return f" (not recorded for {count})" if count else ""


_NAMED = 3  # groups that a sentence names
_CANCELS = "Paired runs were on the same GPU, so its speed cancels in their ratios."
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
        return self.tested.differ or self.tested.p is None


def gpus_of(rows: Sequence[Row]) -> Gpus | None:
    """Whether the GPUs of a study differ in speed; None where fewer than two are known.

    Args:
        rows: the answer to MEASURED_RUNS.
    """
    # All steps on one GPU that is known: no attempt on another one came before.
    on_one = [run for run in rows if run["gpus"] == 1 and run["resumed_step"] is None]
    placed = [run for run in on_one if run["gpu_uuid"] is not None]
    runs = [
        TimedRun(run["label"], run["gpu_uuid"], run["step_seconds"] / run["tokens_per_step"])
        for run in placed
    ]
    gpus_of_group: dict[str, set[str]] = {}
    for run in runs:
        gpus_of_group.setdefault(run.group, set()).add(run.device)
    used = len(set[str]().union(*gpus_of_group.values()))
    if used < 2:
        return None
    tested = devices(runs)
    if tested.spread is None or tested.low is None or tested.high is None or tested.p is None:
        first = f"Whether the {used} GPUs differ in speed was not tested: "
        first += "too few groups ran several times and on several GPUs."
    else:
        which = f"{tested.count} GPUs"
        if tested.count != used:
            which = f"{tested.count} of {used} GPUs that can be compared"
        began = f"The {which} differ" if tested.differ else f"No difference between the {which} was found"
        ends = f"{_unsigned(tested.low)} to {_unsigned(tested.high)} %"
        first = (
            f"{began}: steps took {_unsigned(tested.spread)} % longer on the slowest than on the fastest "
            f"({ends}; F test, {p_value(tested.p)})."
        )
    sentences = [first]
    if tested.noisy:
        verb = "varies" if len(tested.noisy) == 1 else "vary"
        sentences.append(
            f"This leaves out {_named(tested.noisy)}, which {verb} far more than the other groups."
        )
    if unknown := len(rows) - len(placed):
        several = f"{counted(unknown, 'run')} on several GPUs"
        sentences.append(f"It leaves out {several}, on one that is not known, or started again.")
    if tested.differ:
        sentences.append(_pairs(placed, tested.effects))
    few = [group for group, gpus in gpus_of_group.items() if 2 * len(gpus) <= used]
    if tested.p is None and _on_one_each(placed):
        sentences.append(_CANCELS)
    elif few and (tested.differ or tested.p is None):
        sentences.append(
            f"{_named(few)} ran on half of the GPUs or fewer: what sets them apart may be the GPUs."
        )
    return Gpus(tested, " ".join(sentences))


def _unsigned(share: float) -> str:
    return percent(share).removeprefix("+")


def _pairs(runs: Sequence[Row], effects: dict[str, float]) -> str:
    """What the difference does to ratios, which are of runs with the same seed and repeat.

    It may put one group ahead of another by its share of the GPUs alone.
    """
    if _on_one_each(runs):
        return _CANCELS

    effects_of_group: dict[str, list[float]] = {}
    for run in runs:
        if run["gpu_uuid"] in effects:
            effects_of_group.setdefault(run["label"], []).append(effects[run["gpu_uuid"]])
    shares = {label: fmean(of_runs) for label, of_runs in effects_of_group.items()}
    first, last = min(shares, key=shares.__getitem__), max(shares, key=shares.__getitem__)
    ahead = expm1(shares[last] - shares[first])
    favour = (
        "it favours no group, as all were spread evenly over the GPUs"
        if ahead < _SEEN
        else "groups were not spread evenly over the GPUs, which alone "
        f"puts {group_name(first)} {_unsigned(ahead)} % ahead of {group_name(last)}"
    )
    return f"Pairs of runs on different GPUs include this difference, which widens the intervals; {favour}."


def _on_one_each(runs: Sequence[Row]) -> bool:
    """Whether the runs of each pair were on one GPU."""
    places: dict[Hashable, set[str]] = {}
    for group in groups_of(runs).values():
        for key, run in group.pairs.items():
            places.setdefault(key, set()).add(run["gpu_uuid"])
    return all(len(gpus) == 1 for gpus in places.values())


def _named(groups: Sequence[str]) -> str:
    """The groups, set off from the words around them; of many, how many."""
    if len(groups) > _NAMED:
        return f"{len(groups)} groups"
    return ", ".join(map(group_name, groups))
