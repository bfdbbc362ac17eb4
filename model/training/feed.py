"""Batches made, and copied to the device, ahead of the steps that take them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import torch
from torch import Tensor

from model.record.text import Position
from model.training.data import Batches
from model.training.parallel.world import ALONE, World

_AHEAD = 2  # batches: one waits while another is made


class MicroBatch(NamedTuple):
    """Samples that go through the model at once, (B, T) each.

    Attributes:
        last: whether no other part of the batch comes after it.
    """

    inputs_BT: Tensor
    labels_BT: Tensor
    last: bool


class Ready(NamedTuple):
    """A process's part of a batch, on its device, (B, T) each.

    Attributes:
        training_tokens: number of labels that the loss counts, in the whole batch.
        after: where the next batch starts.
        copied: reached when the device has it; None on a CPU.
    """

    inputs_BT: Tensor
    labels_BT: Tensor
    training_tokens: int
    after: Position
    copied: torch.cuda.Event | None

    def parts(self, count: int) -> Iterator[MicroBatch]:
        """Inputs and labels in `count` equal parts, (B / count, T) each."""
        pairs = zip(self.inputs_BT.chunk(count), self.labels_BT.chunk(count), strict=True)
        return (MicroBatch(*pair, last=number == count) for number, pair in enumerate(pairs, 1))


class Feed(Iterator[Ready]):
    """A run's batches in their order, made by another thread and copied in another stream.

    The thread ends with the last reference to the feed.

    Attributes:
        position: where the next batch to be taken starts; more batches may have been made already.

    Raises:
        UserError: as `Batches`, when a batch is taken that could not be made.
    """

    def __init__(self, batches: Batches, device: torch.device, world: World = ALONE) -> None:
        self.position = batches.position
        self._batches, self._device, self._world = batches, device, world
        # PyTorch leaves this unannotated.
        self._stream = None if device.type == "cpu" else torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._thread = ThreadPoolExecutor(1, "data")
        self._ahead = deque(self._thread.submit(self._make) for _ in range(_AHEAD))

    def __next__(self) -> Ready:
        self._ahead.append(self._thread.submit(self._make))
        ready = self._ahead.popleft().result()
        self.position = ready.after
        if ready.copied:
            computing = torch.cuda.current_stream(self._device)
            computing.wait_event(ready.copied)
            for tensor in (ready.inputs_BT, ready.labels_BT):
                tensor.record_stream(computing)  # its memory is the other stream's
        return ready

    def _make(self) -> Ready:
        batch, after = next(self._batches), self._batches.position
        inputs_BT, labels_BT = (
            own_part(torch.from_numpy(array), self._world) for array in (batch.inputs_BT, batch.labels_BT)
        )
        copied = None
        if self._stream is not None:
            with torch.cuda.stream(self._stream):
                # From pageable memory a copy would wait for all that the device still has to do.
                inputs_BT, labels_BT = (
                    x.pin_memory().to(self._device, non_blocking=True) for x in (inputs_BT, labels_BT)
                )
                copied = self._stream.record_event()
        return Ready(inputs_BT, labels_BT, batch.training_tokens, after, copied)


def own_part(x_BT: Tensor, world: World) -> Tensor:
    """This process's part of a batch: consecutive samples, and its tokens of each.

    Each process makes the whole batch, so that the order of the documents is global, and each knows how many
    labels of the batch count.
    """
    if world.mesh is None:
        return x_BT
    from model.training.parallel import context

    return context.mine(x_BT.chunk(world.parallel.samples)[world.sample_rank], world)
