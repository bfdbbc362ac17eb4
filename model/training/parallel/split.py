"""How a llama is split over the processes of its run, by PyTorch's own DDP, FSDP2, DTensor and their meshes.

| axes | what does it |
|---|---|
| replicate alone | DDP: whole copies; gradients are averaged while the backward pass goes on |
| shard, context | FSDP2 over both: each holds a piece, and gathers a block while the one before it runs |
| with replicate | FSDP2 over a mesh of both (HSDP): gradients are also averaged over the replicas |
| tensor | heads and feed-forward of each block are split first, by DTensor |

Tensor parallelism leaves the norms, the embedding and the head whole in each of its processes. Each process
computes them in full from the same numbers, so that either loss function works unchanged; a head split over
the vocabulary would need its own loss. The cost is that each process computes the head's whole product.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from model.record.config import TrainConfig
from model.training.parallel.world import World

if TYPE_CHECKING:
    from torch.distributed.tensor.parallel import ParallelStyle


def block(module: nn.Module, train: TrainConfig, world: World) -> None:
    """Split a block that was just drawn, so that at most one is ever whole on this process's device."""
    if world.parallel.tensor > 1:
        _by_heads(module, world)
    if train.cut_by(world.parallel):
        _shard([module], train, world, reshard=world.parallel.reshard)


def end(modules: list[nn.Module], train: TrainConfig, world: World) -> None:
    """Split what comes after the last block: modules that each forward pass calls, in this order.

    They are a group of their own, so that they are gathered while the last block runs, and their gradients
    are added up during its backward pass. They stay gathered, as nothing else is between their two passes.
    """
    if train.cut_by(world.parallel):
        _shard(modules, train, world, reshard=False)


def root(module: nn.Module, train: TrainConfig, world: World) -> nn.Module:
    """Split what is not split yet; returns the module to call instead of the given one."""
    if train.cut_by(world.parallel):
        _shard([module], train, world, reshard=False)  # backward, it would be gathered before it is needed
        return module
    if world.parallel.replicate == 1:
        return module
    tables = [name for name, _ in module.named_buffers()]  # the same in all processes, so not broadcast
    ddp: Any = nn.parallel.DistributedDataParallel
    ddp._set_params_and_buffers_to_ignore_for_model(module, tables)
    replicated: nn.Module = ddp(module, gradient_as_bucket_view=True)
    _around(replicated, ("_pre_forward",), world)  # all agree on their buckets there, at the second step
    return replicated


def wait_for_last(module: nn.Module, last: bool, keep: bool = False) -> None:
    """Call this before each part of a batch: copies of the model exchange gradients only after the last.

    If parameters are sharded, each part's gradients are sharded at once: to keep them whole would take the
    memory that sharding saves.

    Args:
        keep: keep gathered parameters until the last part, too.
    """
    if isinstance(module, nn.parallel.DistributedDataParallel):
        module.require_backward_grad_sync = last  # as its no_sync() does
    elif hasattr(module, "set_requires_all_reduce"):
        sharded = cast("Any", module)
        sharded.set_requires_all_reduce(last)
        sharded.set_reshard_after_backward(last or not keep)


def _shard(modules: list[nn.Module], train: TrainConfig, world: World, reshard: bool) -> None:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    wide = torch.float32 if train.reduce == "float32" else None  # None: as the parameters
    policy = MixedPrecisionPolicy(reduce_dtype=wide)
    # The processes that average gradients: (pieces,), or (replicas, pieces).
    assert world.pieces is not None
    mesh = world.pieces["replicate", "shard"] if world.parallel.replicate > 1 else world.pieces["shard"]
    fully_shard(modules, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)

    # The time in which FSDP2 gathers and scatters a module does not count as this process's own.
    first: Any = modules[0]
    fsdp = first._get_fsdp_state()
    for group in getattr(fsdp, "_fsdp_param_groups", None) or [getattr(fsdp, "_fsdp_param_group", None)]:
        _around(group, _WAITING, world)


# The methods of PyTorch's groups of parameters that wait for other processes.
_WAITING = ("pre_forward", "pre_backward", "post_backward")


def _around(owner: Any, names: tuple[str, ...], world: World) -> None:
    """Do not count calls as this process's own time. They are PyTorch's internals, and may change."""
    if not all(hasattr(owner, name) for name in names):
        world.own.measurable = False
        return
    for name in names:
        setattr(owner, name, world.own.around(getattr(owner, name)))


def _by_heads(module: nn.Module, world: World) -> None:
    """Split queries, keys, values, gate and up by their outputs, and what follows them by its inputs."""
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        parallelize_module,
    )

    def once(others: int) -> ParallelStyle:
        """Say that a module's first input is whole: its gradient is added up once for all that read it."""
        layouts = (Replicate(), *[None] * others)
        return PrepareModuleInput(input_layouts=layouts, desired_input_layouts=layouts)

    plan = {
        "attention": once(3),
        "attention.query": ColwiseParallel(),
        "attention.key": ColwiseParallel(),
        "attention.value": ColwiseParallel(),
        "attention.out": RowwiseParallel(),
        "feed_forward": once(0),
        "feed_forward.gate": ColwiseParallel(),
        "feed_forward.up": ColwiseParallel(),
        "feed_forward.down": RowwiseParallel(),
    }
    assert world.pieces is not None
    # Each process has drawn the same values, and keeps its own piece of them.
    parallelize_module(module, world.pieces["tensor"], plan, src_data_rank=None)
