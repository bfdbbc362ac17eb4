"""Under which conditions runs were measured: their order, drift over its blocks, load, other users."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.stats.drift import Drift, drift
from analysis.stats.estimate import median
from analysis.verdicts.groups import Row, groups_of
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
        said = "Drift was not tested: " + (
            "the runs were not started in blocks (`order: interleaved`)."
            if planned
            else "in which order the runs were started is unknown."
        )
        return Drift(None, None, None, None, False, said)
    return drift({key: median(values) for key, values in blocks.items()})


def order_of(rows: Sequence[Row]) -> str:
    """The order in which the runs were started."""
    designs = [row["design"] for row in rows if row["design"] and row["design"]["order"]]
    orders = sorted({design["order"] for design in designs})
    if not orders:
        return "unknown: the records come from other programs, or predate starting orders"
    blocks = {row["block"] for row in rows if row["block"] is not None}
    seeds = sorted({design["order_seed"] for design in designs if design["order_seed"] is not None})
    said = [" and ".join(orders)]
    if blocks:
        number = f"{len(blocks)} {'block' if len(blocks) == 1 else 'blocks'}"
        said.append(
            number + (" of one run of every group" if _whole(rows) else " without some of the groups")
        )
    if seeds:
        said.append(f"shuffled with seed {', '.join(map(str, seeds))}")
    return ", ".join(said)


def _whole(rows: Sequence[Row]) -> bool:
    """Whether every block has every group; blocks of launches with `--only` do not."""
    labels = {row["label"] for row in rows}
    blocks: dict[int, set[str]] = {}
    for row in rows:
        if row["block"] is not None:
            blocks.setdefault(row["block"], set()).add(row["label"])
    return all(block == labels for block in blocks.values())


def load_of(rows: Sequence[Row]) -> str:
    """How busy the machines were before the runs, and who else was on the devices.

    Args:
        rows: the answer to LOADS.
    """
    loads = [
        row["load_before"] / row["cores"] for row in rows if None not in (row["load_before"], row["cores"])
    ]
    said = "load not recorded"
    if loads:
        said = f"load before the runs {min(loads):.2g} to {max(loads):.2g} per core"
        said += _unknown(len(rows) - len(loads))
    users = [row["device_users"] for row in rows if row["device_users"] is not None]
    if users:
        others = sum(1 for count in users if count)
        shared = f"other processes were on the device of {others} of {counted(len(users), 'run')}"
        said += f"; {shared if others else 'no other process was on the devices'}"
        said += _unknown(len(rows) - len(users))
    return said


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
    which = counted(len(loaded), "run")
    return (
        f"When {which} of {len(rows)} started, the machine was busy with something else (a load above "
        f"{_BUSY} per core, beyond that of the study's own runs before, or other processes on the device): "
        "their times may be too long."
    )


def _unknown(count: int) -> str:
    return f" (not recorded for {count})" if count else ""
