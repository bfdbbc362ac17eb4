"""Which runs will not fit into memory, and what would make them fit. Runs are not refused for it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from model.measure import hostmemory
from model.measure.flops import parameter_count
from model.measure.memory import trained_memory
from model.measure.memory_inference import needed
from model.record.config import RunConfig
from model.record.records import RunRecord
from model.record.units import size
from runner.inputs.profile import Cluster
from runner.state import gpus
from runner.state.attempts import label
from runner.state.endings import out_of_memory

_NAMED = 3  # groups that are named one by one
_SAVE: tuple[dict[str, Any], ...] = (
    {"loss": "linear_cross_entropy"},
    {"checkpoint_activations": True},
    {"loss": "linear_cross_entropy", "checkpoint_activations": True},
)


@dataclass(frozen=True)
class Room:
    """Memory that there is for a process of a run.

    Attributes:
        bytes: how much.
        whose: and where, as a sentence begins that ends with how much: `the profile's GPUs have`.
    """

    bytes: int
    whose: str

    def __str__(self) -> str:
        return f"{self.whose} {size(self.bytes)}"


# NVIDIA's B300 (DGX B300 datasheet) and AMD's MI355X (datasheet) have 288 GB: nothing larger is sold in 2026.
LARGEST = Room(288 * 10**9, "the largest GPUs have")


def gpu_room(cluster: Cluster) -> Room | None:
    """Memory of one GPU: the profile's, or that of this machine where runs start here; None if unknown."""
    profile, rooms = cluster.profile, list[Room]()
    if profile.gpu_memory_bytes:
        rooms.append(Room(profile.gpu_memory_bytes, "the profile's GPUs have"))
    if profile.executor == "local" and (here := gpus.memory({**os.environ, **profile.env_here})):
        rooms.append(Room(here, "this machine's GPUs have"))
    return min(rooms, key=lambda room: room.bytes, default=None)


def host_room(cluster: Cluster, run: RunRecord) -> Room | None:
    """Host memory of one process of a run: the profile's, or what this machine has left; None if unknown."""
    rooms = list[Room]()
    if run.memory_bytes:
        rooms.append(Room(run.memory_bytes, "the profile gives it"))
    if cluster.profile.executor == "local" and (left := hostmemory.left()):
        among = run.config.processes
        whose = (
            f"this machine, shared by {among} processes, still has for each"
            if among > 1
            else "this machine still has"
        )
        rooms.append(Room(left // among, whose))
    return min(rooms, key=lambda room: room.bytes, default=None)


def forecast(cluster: Cluster, runs: Sequence[RunRecord]) -> Iterator[str]:
    """Lines for the user: what the runs need, and which of them need more than there is."""
    groups = {run.group: run for run in runs if needed(run.config) is not None}
    on_gpus = {group: run for group, run in groups.items() if run.config.device == "cuda"}
    rooms = {group: host_room(cluster, run) for group, run in groups.items() if group not in on_gpus}
    if on_gpus:
        needs = [_need(run.config) for run in on_gpus.values()]
        least, most = size(min(needs)), size(max(needs))
        whose = "run" if all(run.config.processes == 1 for run in on_gpus.values()) else "GPU"
        yield f"GPU memory, estimated: {least if least == most else f'{least} to {most}'} per {whose}"
        room = gpu_room(cluster)
        if room is None and cluster.profile.executor == "local":
            yield "it is compared with no GPU: nvidia-smi names none here; state `gpu_memory` in the profile"
        rooms |= dict.fromkeys(on_gpus, room or LARGEST)
    yield from _too_large(groups, rooms)


def _too_large(groups: Mapping[str, RunRecord], rooms: Mapping[str, Room | None]) -> Iterator[str]:
    """The groups that need more than they have, unless a study expects that."""
    large = list[tuple[RunRecord, Room]]()
    for group, run in groups.items():
        room, ends = rooms[group], out_of_memory(run.config.device)
        if room and _need(run.config) > room.bytes and run.expected_outcome is not ends:
            large.append((run, room))
    for run, room in large[:_NAMED]:
        axes = [axis for axis in run.factors if axis != "seed"]  # the group's name: without seed and repeat
        name = label(run, axes) if axes else "each run"
        yield (
            f"{name} will probably end as {out_of_memory(run.config.device)}: it needs about "
            f"{size(_need(run.config))}{_arithmetic(run.config, room)}, but {room}; "
            f"{_instead(run.config, room.bytes)}"
        )
    if (more := len(large) - _NAMED) > 0:
        yield f"and so will {more} more"


def _need(config: RunConfig) -> int:
    return needed(config) or 0


def _arithmetic(config: RunConfig, room: Room) -> str:
    """What the parameters alone take, where that is too much already."""
    if config.task != "training" or (trained := trained_memory(config)) <= room.bytes:
        return ""
    part = "its part of " * (config.parallel.pieces * config.parallel.tensor > 1)
    count = f"{parameter_count(config.model):,d} parameters"
    return f" ({part}{count}, their gradients and AdamW's two states alone take {size(trained)})"


def _instead(config: RunConfig, memory: int) -> str:
    """What would make a run fit, as options to type."""
    for change in _ways(config):
        again = config.parallel.model_copy(update=change)
        if _need(config.model_copy(update={"parallel": again})) <= memory:
            return f"use {_typed('parallel', change)}"
    section = {"training": "train"}.get(config.task, config.task)
    for saving in _savings(config):
        changed = getattr(config, section).model_copy(update=saving)
        if _need(config.model_copy(update={section: changed})) <= memory:
            return f"use {_typed(section, saving)}"
    return f"use a smaller model, or state `expect: {out_of_memory(config.device)}`"


def _typed(section: str, changes: Mapping[str, Any]) -> str:
    return " ".join(f"--set {section}.{key}={_yaml(value)}" for key, value in changes.items())


def _ways(config: RunConfig) -> Iterator[dict[str, Any]]:
    """Other ways to share a model among as many processes."""
    parallel = config.parallel
    if not parallel.reshard:
        yield {"reshard": True}
    if parallel.replicate > 1:
        yield {"replicate": 1, "shard": parallel.samples}


def _savings(config: RunConfig) -> Iterator[dict[str, Any]]:
    """What to set instead; what changes the study least comes first."""
    if config.task == "inference":
        yield from ({"batch_size": size} for size in _halved(config.inference.batch_size))
        yield from ({"prompt_length": length} for length in _halved(config.inference.prompt_length))
        return
    batch, length = config.train.batch_size // config.parallel.samples, config.train.sequence_length
    yield from (saving for saving in _SAVE if config.device == "cuda" or "loss" not in saving)
    yield from ({"accumulate": count} for count in range(2, batch + 1) if batch % count == 0)
    yield from ({"sequence_length": shorter} for shorter in _halved(length))


def _halved(size: int) -> list[int]:
    """Half of it, a quarter, and so on down to 1."""
    return [size >> times for times in range(1, size.bit_length())]


def _yaml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
