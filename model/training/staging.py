"""Copies of tensors in host memory, which are written to disk while training changes the tensors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from model.measure import hostmemory
from model.record.units import size
from model.training import tensorfile

if TYPE_CHECKING:
    from torch import Tensor

BLOCK = 64 * 2**20  # bytes; PyTorch rounds pinned memory up to a power of two
SPARE = 2**30  # bytes of host memory that copies leave free


class Staging:
    """Host memory that holds copies of tensors, and is kept from one copy to the next.

    In a process that uses a GPU it is pinned, so that the GPU writes to it without the host's help.
    """

    def __init__(self) -> None:
        self._blocks: list[Tensor] = []

    def hold(self, tensors: Iterable[Tensor]) -> list[memoryview]:
        """Copy the tensors, which may change as soon as this returns; returns the bytes of the copy.

        They are copied in this thread's current stream, after the work that is already in it.

        Raises:
            MemoryError: the host has not enough memory. All of it is freed.
        """
        import torch

        end, gpu = 0, None
        for piece in tensorfile.pieces(tensor.contiguous() for tensor in tensors):
            gpu, left = piece.device if piece.is_cuda else gpu, piece
            while len(left):
                room = self._room(end)
                now, left = left[: len(room)], left[len(room) :]
                room[: len(now)].copy_(now, non_blocking=True)
                end += len(now)
        if gpu is not None:
            torch.cuda.current_stream(gpu).synchronize()
        return [
            block[: end - start].numpy().data
            for block, start in zip(self._blocks, range(0, end, BLOCK), strict=False)
        ]

    def _room(self, end: int) -> Tensor:
        """The free part of the block in which the copy continues.

        Little memory left counts as none: Linux would promise it, and kill the process that uses it. Each
        process of a node checks this before each block, so they need not agree on their shares.
        """
        import torch

        if end == len(self._blocks) * BLOCK:
            pinned = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]  # torch leaves it so
            try:
                left = hostmemory.left()
                if left is not None and left < SPARE + BLOCK:
                    raise MemoryError(f"{size(left)} of host memory are left after a copy of {size(end)}")
                self._blocks.append(torch.empty(BLOCK, dtype=torch.uint8, pin_memory=pinned))
            except (RuntimeError, MemoryError) as error:
                self._blocks.clear()
                if pinned:  # torch 2.9 to 2.11 have no public name for it
                    empty = getattr(torch.accelerator, "empty_host_cache", None)
                    (empty or torch._C._host_emptyCache)()
                raise MemoryError(f"host memory ran out after copying {size(end)} of it") from error
        return self._blocks[end // BLOCK][end % BLOCK :]
