"""What a process takes of each global batch: some of its samples, and some of their tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from model.data import Batch

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from model.parallel.world import World

    Rows = TypeVar("Rows", "np.ndarray[tuple[int, ...], np.dtype[np.int64]]", Tensor)


def of(batch: Batch, world: World) -> Batch:
    """This process's part: consecutive samples, and of each the tokens of `positions`.

    Each process makes the whole batch, so that the order of the documents is global and nobody has to ask how
    many of its labels count.
    """
    if world.mesh is None:
        return batch
    count = len(batch.inputs_BT) // world.parallel.samples
    mine = slice(world.sample_rank * count, (world.sample_rank + 1) * count)
    inputs_TB, labels_TB = (positions(x_BT[mine].T, world) for x_BT in (batch.inputs_BT, batch.labels_BT))
    return Batch(inputs_TB.T, labels_TB.T)


def positions(rows: Rows, world: World) -> Rows:
    """The rows, one a position, that this process has of a sample.

    Of 2 x context chunks it has one from either end: under a causal mask early tokens attend to few keys and
    late ones to many, so that all processes have as much to do (Llama 3, arXiv:2407.21783, 3.3.2).
    """
    if world.parallel.context == 1:
        return rows
    chunk = len(rows) // (2 * world.parallel.context)
    first, last = world.context_rank * chunk, len(rows) - (world.context_rank + 1) * chunk
    return _joined(rows[first : first + chunk], rows[last : last + chunk])


def _joined(early: Rows, late: Rows) -> Rows:
    import numpy as np
    import torch

    if isinstance(early, torch.Tensor):
        return torch.cat([early, late])
    return np.concatenate([early, late])
