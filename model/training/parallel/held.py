"""Tensors of which a process holds a piece: DTensors, without importing their module."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


def is_cut(tensor: Tensor) -> bool:
    """Whether it is a DTensor, which says what part of it each process holds."""
    return hasattr(tensor, "device_mesh")


@torch.no_grad()
def local(tensors: Iterable[Tensor]) -> list[Tensor]:
    """The piece of each that this process holds, in the same memory; a plain tensor is its own."""
    whole: Iterable[Any] = tensors
    return [tensor.to_local() if is_cut(tensor) else tensor for tensor in whole]


def holders(tensor: Tensor, processes: int) -> int:
    """Number of all processes that hold the same piece of it as this one; all of them if it is not split."""
    cut: Any = tensor
    for dim, placement in enumerate(cut.placements if is_cut(tensor) else ()):
        if not placement.is_replicate():
            processes //= cut.device_mesh.size(dim)
    return processes
