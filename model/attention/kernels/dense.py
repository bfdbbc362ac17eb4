"""Which tensors TMA, the copy engine of Hopper GPUs, can address."""

from functools import lru_cache

import torch
from torch import Tensor


def fits(x: Tensor) -> bool:
    """Whether its rows are dense and begin at multiples of 16 bytes. (A dimension of size 1 has no stride.)"""
    return x.data_ptr() % 16 == 0 and _strides_fit(x.shape, x.stride(), x.element_size())


@lru_cache(maxsize=4096)  # a forward and its backward ask 16 times
def _strides_fit(shape: torch.Size, strides: tuple[int, ...], size: int) -> bool:
    *others, last = strides
    moved = [stride for stride, length in zip(others, shape[:-1], strict=True) if length > 1]
    return last == 1 and all(stride > 0 and stride * size % 16 == 0 for stride in moved)
