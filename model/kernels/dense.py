"""Which tensors TMA, the copy engine of Hopper GPUs, can address."""

from torch import Tensor


def fits(x: Tensor) -> bool:
    """Whether its rows are dense and begin at multiples of 16 bytes. (A dimension of size 1 has no stride.)"""
    strides = [stride for stride, size in zip(x.stride()[:-1], x.shape[:-1], strict=True) if size > 1]
    aligned = all(stride > 0 and stride * x.element_size() % 16 == 0 for stride in strides)
    return x.stride(-1) == 1 and aligned and x.data_ptr() % 16 == 0
