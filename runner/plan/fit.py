"""Which runs will probably not complete, for lack of memory or of what a version has.

A run that is too large starts nevertheless: a study may show that.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from model.measure import hostmemory
from model.measure.flops import parameter_count
from model.measure.memory import needed, trained_memory
from model.record.config import RunConfig
from model.record.outcome import Outcome
from model.record.records import RunRecord
from model.record.units import size
from runner.inputs.cells import Cell
from runner.inputs.document import InvalidFile, Problem
from runner.inputs.options import usable_advice
from runner.inputs.profile import Cluster, Profile
from runner.state import gpus
from runner.state.attempts import label
from runner.state.endings import oom_outcome

_NAMED = 3  # groups that are named one by one


def refuse_versions(cells: Sequence[Cell], profile: Profile) -> None:
    """Check settings against the torch and triton of this Python, if the runs use it.

    Raises:
        InvalidFile: some need others; runs that are expected to end unsupported may start.
    """
    if profile.executor != "local" or profile.python is not None:
        return
    if problems := [
        Problem(cell.marks.get(setting, cell.origin), why)
        for cell in cells
        if Outcome.UNSUPPORTED not in cell.expected
        for setting, why in cell.config.section.lacking().items()
    ]:
        raise InvalidFile(problems)


@dataclass(frozen=True)
class Room:
    """Memory that there is for a process of a run.

    Attributes:
        owner: whose it is, with a verb: `the profile's GPUs have`.
    """

    bytes: int
    owner: str

    def __str__(self) -> str:
        return f"{self.owner} {size(self.bytes)}"


# NVIDIA's B300 (DGX B300 datasheet) and AMD's MI355X (datasheet) have 288 GB: nothing larger is sold in 2026.
LARGEST = Room(288 * 10**9, "the largest GPUs have")


def _room(cluster: Cluster, run: RunRecord) -> Room | None:
    """Memory for one process of a run, of its GPU or of the host; None if unknown.

    It is the profile's, or, where runs start here, what this machine has: of its GPUs all, of its own memory
    what is left.
    """
    profile, rooms = cluster.profile, list[Room]()
    here = profile.executor == "local"
    if run.config.device == "cuda":
        if profile.gpu_memory_bytes:
            rooms.append(Room(profile.gpu_memory_bytes, "the profile's GPUs have"))
        if here and (smallest := gpus.memory({**os.environ, **profile.env_here})):
            rooms.append(Room(smallest, "this machine's GPUs have"))
    else:
        if run.memory_bytes:
            rooms.append(Room(run.memory_bytes, "the profile gives it"))
        if here and (left := hostmemory.left()):
            among, owner = run.config.processes, "this machine still has"
            if among > 1:
                owner = f"this machine, shared by {among} processes, still has for each"
            rooms.append(Room(left // among, owner))
    return min(rooms, key=lambda room: room.bytes, default=None)


def memory_forecast(cluster: Cluster, runs: Sequence[RunRecord]) -> Iterator[str]:
    """Lines for the user: what the runs need, and which of them need more than there is."""
    groups = {run.group: run for run in runs if needed(run.config) is not None}
    on_gpus = {group: run for group, run in groups.items() if run.config.device == "cuda"}
    rooms = {group: _room(cluster, run) for group, run in groups.items() if group not in on_gpus}
    if on_gpus:
        needs = [_need(run.config) for run in on_gpus.values()]
        least, most = size(min(needs)), size(max(needs))
        unit = "run" if all(run.config.processes == 1 for run in on_gpus.values()) else "GPU"
        yield f"GPU memory, estimated: {least if least == most else f'{least} to {most}'} per {unit}"
        room = _room(cluster, next(iter(on_gpus.values())))  # the same for all
        if room is None and cluster.profile.executor == "local":
            yield "it is compared with no GPU: nvidia-smi names none here; state `gpu_memory` in the profile"
        rooms |= dict.fromkeys(on_gpus, room or LARGEST)
    # The groups that need more than they have, unless the study expects that.
    large = list[tuple[RunRecord, Room]]()
    for group, run in groups.items():
        room, ends = rooms[group], oom_outcome(run.config.device)
        if room and _need(run.config) > room.bytes and ends not in run.expected:
            large.append((run, room))
    present = {axis: [run.factors.get(axis) for run in runs] for axis in (runs[0].factors if runs else ())}
    for run, room in large[:_NAMED]:
        axes = [axis for axis in run.factors if axis != "seed"]  # the group's name: without seed and repeat
        name = label(run, axes) if axes else "each run"
        config, alone = run.config, ""
        if config.section.trains and (trained := trained_memory(config)) > room.bytes:
            part = "its part of " * (config.parallel.pieces * config.parallel.tensor > 1)
            count = f"{parameter_count(config.model):,d} parameters"
            alone = f" ({part}{count}, their gradients and AdamW's two states alone take {size(trained)})"
        yield (
            f"{name} will probably end as {oom_outcome(config.device)}: it needs about "
            f"{size(_need(config))}{alone}, but {room}; "
            f"{usable_advice(_instead(config, room.bytes), present)}"
        )
    if (more := len(large) - _NAMED) > 0:
        yield f"and so will {more} more"


def _need(config: RunConfig) -> int:
    return needed(config) or 0


def _instead(config: RunConfig, memory: int) -> str:
    """The change that would make a run fit, as options to type."""
    parallel = config.parallel
    ways: list[dict[str, Any]] = []  # to share the model among as many processes
    ways += [{"reshard": True}] if not parallel.reshard else []
    ways += [{"replicate": 1, "shard": parallel.samples}] if parallel.replicate > 1 else []
    for change in ways:
        again = parallel.model_copy(update=change)
        if _need(config.model_copy(update={"parallel": again})) <= memory:
            return f"use {_typed('parallel', change)}"
    section = config.section
    for saving in section.savings(config):
        changed = section.model_copy(update=saving)
        if _need(config.model_copy(update={section.key: changed})) <= memory:
            return f"use {_typed(section.key, saving)}"
    return f"use a smaller model, or state `expect: {oom_outcome(config.device)}`"


def _typed(section: str, changes: Mapping[str, Any]) -> str:
    values = {key: str(value).lower() if isinstance(value, bool) else value for key, value in changes.items()}
    return " ".join(f"--set {section}.{key}={value}" for key, value in values.items())
