"""Q, K and V of 8 bits (E4M3) for attention, with a scale for each key head, made outside of the call.

Shapes: B batch, T sequence, H query heads, K key/value heads, D head dim.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

DTYPE = torch.float8_e4m3fn
LARGEST = 448.0  # of E4M3


class Quantised(NamedTuple):
    """Q, K and V in E4M3, and the float32 number that each key head's count in (Q's: its group's)."""

    q_BTHD: Tensor
    k_BTKD: Tensor
    v_BTKD: Tensor
    scales_3BK: Tensor


def quantised(q_BTHD: Tensor, k_BTKD: Tensor, v_BTKD: Tensor, one_scale: bool) -> Quantised:
    """Round to E4M3 after a division that makes the largest number of each key head 448.

    Args:
        one_scale: whether all heads and samples share the scale of the largest number of all.
    """
    kv_heads = k_BTKD.shape[2]
    scales_BK = []
    for x_BTHD in (q_BTHD, k_BTKD, v_BTKD):
        B, T, _, D = x_BTHD.shape
        largest_BK = x_BTHD.detach().abs().reshape(B, T, kv_heads, -1, D).amax((1, 3, 4)).float()
        if one_scale:
            largest_BK = largest_BK.amax().expand_as(largest_BK)
        scales_BK.append(torch.where(largest_BK > 0, largest_BK / LARGEST, 1.0))
    q, k, v = (
        (x_BTHD.detach().float() / _of_heads(scale_BK, x_BTHD)).to(DTYPE)
        for x_BTHD, scale_BK in zip((q_BTHD, k_BTKD, v_BTKD), scales_BK, strict=True)
    )
    return Quantised(q, k, v, torch.stack(scales_BK))


def dequantised(x_BTHD: Tensor, scale_BK: Tensor, dtype: torch.dtype) -> Tensor:
    """What the numbers count, in this precision."""
    return x_BTHD.to(dtype) * _of_heads(scale_BK.to(dtype), x_BTHD)


def _of_heads(scale_BK: Tensor, x_BTHD: Tensor) -> Tensor:
    """(B, 1, H, 1): the scale of each head's key head."""
    return scale_BK.repeat_interleave(x_BTHD.shape[2] // scale_BK.shape[1], 1)[:, None, :, None]
