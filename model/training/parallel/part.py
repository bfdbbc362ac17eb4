"""What a process takes of each global batch: some of its samples, and some of their tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

    from model.training.parallel.world import World


class Part(NamedTuple):
    """Samples that go through the model at once, (B, T) each.

    Attributes:
        last: whether no other part of the batch comes after it.
    """

    inputs_BT: Tensor
    labels_BT: Tensor
    last: bool


def of(x_BT: Tensor, world: World) -> Tensor:
    """This process's part of a batch: consecutive samples, and its tokens of each.

    Each process makes the whole batch, so that the order of the documents is global, and each knows how many
    labels of the batch count.
    """
    if world.mesh is None:
        return x_BT
    from model.training.parallel import context

    return context.mine(x_BT.chunk(world.parallel.samples)[world.sample_rank], world)
