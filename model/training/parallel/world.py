"""The processes of a run, as one of them sees the others."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor, distributed

from model.record.config import AXES, ParallelConfig
from model.training.parallel.own import Own
from model.training.parallel.place import Place

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

TIMEOUT = timedelta(minutes=10)  # of a collective that not all processes reach
Value = TypeVar("Value")


@dataclass(frozen=True)
class World:
    """The processes of a run.

    Attributes:
        mesh: by `AXES`; None for a single process.
        pieces: the mesh over which the model is split: replicate, shard x context (as `shard`), and tensor.
        own: measures the time that this process works by itself.
    """

    place: Place = field(default_factory=Place)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    mesh: DeviceMesh | None = None
    pieces: DeviceMesh | None = None
    own: Own = field(default_factory=lambda: Own(measurable=False), compare=False)

    @property
    def is_first(self) -> bool:
        """Whether this process writes the run's records."""
        return self.place.rank == 0

    @property
    def sample_rank(self) -> int:
        """The part of a batch's samples that this process has, of `parallel.samples`."""
        return self.place.rank // (self.parallel.context * self.parallel.tensor)

    @property
    def context_rank(self) -> int:
        """The part of a sample's tokens that this process has, of `parallel.context`."""
        return self.place.rank // self.parallel.tensor % self.parallel.context

    @property
    def tensor_rank(self) -> int:
        """The part of each block's heads that this process has, of `parallel.tensor`."""
        return self.place.rank % self.parallel.tensor

    @property
    def parts(self) -> int:
        """Number of parts that a batch is cut into."""
        return self.parallel.samples * self.parallel.context

    def most(self, own: int) -> int:
        """The largest number of all processes; all must call this. Waits for no GPU."""
        if self.mesh is None:
            return own
        number = torch.tensor(own)
        with self.own.apart():
            distributed.all_reduce(number, distributed.ReduceOp.MAX)
        return int(number)

    def gather(self, own: Value) -> list[Value]:
        """Collect what each process gives, by rank; all must call this."""
        if self.mesh is None:
            return [own]
        gathered: list[Value] = [own] * self.place.size
        distributed.all_gather_object(gathered, own)
        return gathered

    def total(self, part: Tensor, holders: Tensor | int = 1) -> Tensor:
        """Replace the part by the sum of all processes' parts, and return it; all must call this.

        Args:
            holders: how many processes hold the same part.
        """
        if self.mesh is not None:
            part /= holders
            with self.own.apart():
                distributed.all_reduce(part)
        return part


ALONE = World()


def join(
    place: Place,
    parallel: ParallelConfig,
    device: torch.device,
    listening: socket.socket | None = None,
) -> World:
    """Meet the run's other processes; returns when all are there.

    Args:
        device: where this process computes. NCCL carries what is on GPUs, gloo what is not.
        listening: in rank 0, the socket at the place's address, which torch takes over; thus nobody else can
            take the port. None: torch opens the port.

    Raises:
        RuntimeError: they did not come, or cannot be reached (torch.distributed's own errors).
    """
    if place.size == 1:
        return ALONE
    from torch.distributed.device_mesh import init_device_mesh

    # `init_method` would read variables that torchrun sets: one of them makes rank 0 wait for a server that
    # nobody has started.
    host, _, port = place.address.rpartition(":")
    store = distributed.TCPStore(
        host,
        int(port),
        place.size,
        is_master=place.rank == 0,
        timeout=TIMEOUT,
        master_listen_fd=listening.detach() if listening else None,
    )
    distributed.init_process_group(
        "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
        store=store,
        rank=place.rank,
        world_size=place.size,
        timeout=TIMEOUT,
        device_id=device if device.type == "cuda" else None,
    )
    replicas, shards, context, tensor = (getattr(parallel, axis) for axis in AXES)
    mesh = init_device_mesh(device.type, (replicas, shards, context, tensor), mesh_dim_names=AXES)
    own = Own(measurable=tensor == 1)  # tensor parallelism waits inside blocks
    if context == 1:
        return World(place, parallel, mesh, mesh, own)
    shape, names = (replicas, shards * context, tensor), ("replicate", "shard", "tensor")
    return World(place, parallel, mesh, init_device_mesh(device.type, shape, mesh_dim_names=names), own)
