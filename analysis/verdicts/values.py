"""The values of each thing that should be the same before runs are compared."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]  # a row of the view `runs`, with its JSON columns parsed
STARVED = 0.05  # of the time: a device that waits longer for data is as fast as these in part


@dataclass(frozen=True)
class Topic:
    """Something that a run has one value of.

    Attributes:
        verb, noun: `Completed runs VERB different NOUNs: X, Y.`
        text_of: its value as text; None if it was not recorded.
        expected: whether a run should have recorded it, so that it is said if none did.
    """

    name: str
    verb: str
    noun: str
    text_of: Callable[[Row], str | None]
    expected: Callable[[Row], bool] = lambda _run: False


def devices(runs: Iterable[Row]) -> list[str]:
    """Their devices by name, with how many of a name: `NVIDIA H200 (2 of them, one a run)`."""
    gpus: dict[str, set[str]] = {}
    for run in runs:
        if name := device(run):
            used = gpus.setdefault(name, set())
            if run["gpus"] == 1 and run["gpu_uuid"]:  # of several GPUs, the id of the first alone is known
                used.add(run["gpu_uuid"])
    return [
        f"{name} ({len(used)} of them, one a run)" if len(used) > 1 else name
        for name, used in sorted(gpus.items())
    ]


def shown_outcome(run: Row) -> str | None:
    """How it ended, in a word; `unknown` of an imported run whose log states no number of steps."""
    if run["imported"] and run["planned_steps"] is None and run["outcome"] == "completed":
        return "unknown"
    outcome: str | None = run["outcome"]
    return outcome


def device(run: Row) -> str | None:
    """`2 x NVIDIA H200 on 2 nodes`, `2 processes on a CPU`; None if unknown."""
    if not run["device"]:
        return None
    several = "{} x " if run["gpus"] else "{} processes on "
    count = several.format(run["processes"]) if (run["processes"] or 1) > 1 else ""
    nodes = f" on {run['nodes']} nodes" if (run["nodes"] or 1) > 1 else ""
    name = run["device"].replace(", 1 threads", ", 1 thread")  # the record's name stays what it was
    return f"{count}{name}{nodes}"


def without_threads(device: str | None) -> str | None:
    """The name of a device that is the same for every number of threads that a run took of a CPU."""
    return device and _THREADS.sub("", device)


_THREADS = re.compile(r", \d+ threads$")  # the end of a CPU's name in model.measure.machine


def processes(run: Row) -> str | None:
    """`8 processes on 2 nodes`; None if unknown."""
    if run["processes"] is None:
        return None
    nodes = f" on {run['nodes']} nodes" if (run["nodes"] or 1) > 1 else ""
    return f"{run['processes']} process{'' if run['processes'] == 1 else 'es'}{nodes}"


def commit(run: Row) -> str:
    """The commit in short, with a word on uncommitted changes."""
    if not run["git_sha"]:
        return "none: planned outside a repository"
    return f"{run['git_sha'][:10]}{' with uncommitted changes' if run['git_dirty'] else ''}"


def peak(run: Row) -> str | None:
    """The peak rate that MFU is relative to; None if unknown."""
    return f"{run['peak_flops'] / 1e12:,.4g} TFLOP/s" if run["peak_flops"] else None


def in_warm_up(run: Row) -> bool:
    """Whether all its steps lie in the warm-up of the learning rate."""
    warm_up = run["config"].get("train", {}).get("warmup_steps")
    return warm_up is not None and run["steps"] is not None and run["steps"] <= warm_up


def clocks(run: Row) -> str | None:
    """Power limit and clocks of the GPU; None if they are unknown."""
    names = {"power_limit_watts": "W", "sm_mhz": "MHz", "memory_mhz": "MHz memory"}
    parts = [f"{run[name]:.0f} {unit}" for name, unit in names.items() if run[name] is not None]
    return " and ".join(parts) or None


def held_back(runs: Sequence[Row], column: str) -> float | None:
    """The share of all runs' wall time for which the clocks were held back; None if it is unknown."""
    known = [
        (run[column], run["wall_seconds"]) for run in runs if run["wall_seconds"] and run[column] is not None
    ]
    return sum(held for held, _ in known) / sum(wall for _, wall in known) if known else None


def held_back_by(row: Row) -> set[str]:
    """What held back a GPU's clock while what counts was measured; empty where nothing is known to have."""
    return set((row["throttle_reasons"] or "").split("; ")) - {"", "none"}


def regimes(runs: Sequence[Row]) -> str | None:
    """Clocks and what held them back, of the runs in which these changed; None if they did in none."""
    mixed = [run for run in runs if run["clocks_changed"]]
    if not mixed:
        return None
    both = [(run["sm_mhz_low"], run["sm_mhz_high"]) for run in mixed]
    ends = [of_run for of_run in both if None not in of_run]
    held = {reason for run in mixed for reason in (run["throttle_reasons"] or "").split("; ") if reason}
    by = [*sorted(held - {"none"}), *(["nothing"] if "none" in held else [])]
    clocks = []
    if ends:
        low, high = min(ends, key=lambda of_run: of_run[0] / (of_run[1] or 1))
        clocks = [f"{'at worst ' if len(set(ends)) > 1 else ''}{low:,.0f} to {high:,.0f} MHz"]
    return "; ".join([*clocks, *([f"throttled by {' or '.join(by)}"] if by else [])])


def starved(runs: Sequence[Row]) -> float | None:
    """The largest share of a run's time that its device waited for data, of the starved; None if none is."""
    shares = [run["data_wait_percentage"] / 100 for run in runs if run["data_wait_percentage"] is not None]
    return max((share for share in shares if share > STARVED), default=None)


COMMIT = Topic("commit", "ran at", "commit", commit)
DEVICE = Topic("device", "ran on", "device", lambda run: run["device"] or None, lambda _run: True)
HOST = Topic("host", "ran on", "host", lambda run: run["node"])
DRIVER = Topic("driver", "ran with", "driver", lambda run: (run["software"] or {}).get("driver"))
CLOCKS = Topic(
    "clocks",
    "ran at",
    "clock and power limit",
    clocks,
    lambda run: bool(run["gpus"]) and not run["imported"],
)
PEAK = Topic("peak", "computes MFU from", "peak rate", peak)


def recorded(runs: Iterable[Row], text_of: Callable[[Row], str | None]) -> set[str]:
    """The values that the runs recorded, as texts."""
    return {text for run in runs if (text := text_of(run)) is not None}


def software(runs: Sequence[Row]) -> dict[str, list[str]]:
    """Versions of each recorded package and of the driver, in the order in which runs have them.

    Of completed runs: another attempt gave no number. Of all of them where none completed.
    """
    done = [run for run in runs if run["outcome"] == "completed"] or runs
    recorded = [run["software"] or {} for run in done]
    names = dict.fromkeys(name for versions in recorded for name in versions)
    return {name: sorted({versions[name] for versions in recorded if name in versions}) for name in names}


def packages(runs: Sequence[Row]) -> dict[str, list[str]]:
    """The same without the driver."""
    return {name: versions for name, versions in software(runs).items() if name != "driver"}


def flop_by_model(runs: Sequence[Row]) -> dict[str, set[int]]:
    """FLOP per token by configuration of the model and length of its samples."""
    counts: dict[str, set[int]] = {}
    for run in runs:
        if run["flop_per_token"]:
            key = json.dumps([run["config"].get("model"), run["sequence_length"]], sort_keys=True)
            counts.setdefault(key, set()).add(run["flop_per_token"])
    return counts


def shares(runs: Sequence[Row]) -> dict[tuple[int, str, int], float]:
    """Percentage of training tokens by seed, text and number of steps."""
    return {
        (run["seed"], run["data_fingerprint"], run["steps"]): run["training_tokens_percentage"]
        for run in runs
        if run["training_tokens_percentage"] is not None and run["data_fingerprint"]
    }
