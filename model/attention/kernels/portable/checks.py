"""What the portable kernels refuse: they read memory as if all this were so, and another shape would be garbage or a crash."""

import torch
from torch import Tensor

from model.attention.kernels.portable import HEAD_DIMS

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def check(q_BTHD: Tensor, k_BUKD: Tensor, v_BUKD: Tensor, offset: int, *like_q: Tensor) -> None:
    """Look at the tensors that a kernel is given, before it is launched.

    Raises:
        ValueError: shapes, precision or devices that the kernels do not take.
    """
    (B, T, H, D), (U, K) = q_BTHD.shape, k_BUKD.shape[1:3]
    shapes = k_BUKD.shape == v_BUKD.shape == (B, U, K, D) and all(x.shape == q_BTHD.shape for x in like_q)
    everything = (q_BTHD, k_BUKD, v_BUKD, *like_q)
    same = all(x.dtype == q_BTHD.dtype and x.device == q_BTHD.device for x in everything)
    taken = D in HEAD_DIMS and q_BTHD.dtype in DTYPES
    # Positions, and rows of a group of heads, are counted in 32 bits.
    counted = abs(offset) + T < 2**31 and U < 2**31 and T * H < 2**31
    if not (shapes and same and taken and counted and min(B, T, U, H, K) > 0 and H % K == 0):
        given = ", ".join(f"{tuple(x.shape)} {x.dtype} on {x.device}" for x in everything)
        raise ValueError(
            "the portable kernel takes q (B, T, heads, D) and k, v (B, U, key heads, D) of one device and one of the "
            "precisions bfloat16, float16 and float32, head dim "
            f"{', '.join(map(str, HEAD_DIMS[:-1]))} or {HEAD_DIMS[-1]}, heads a multiple of key heads, nothing empty; "
            f"got {given}, offset {offset}"
        )


def check_dropout(drop: int, seed: Tensor | None, device: torch.device) -> None:
    """Look at what decides which weights become 0.

    Raises:
        ValueError: no number of sixteenths, or no seed for it, or one that the kernels cannot read.
    """
    given = "no seed" if seed is None else f"a seed {tuple(seed.shape)} {seed.dtype} on {seed.device}"
    right = seed is not None and seed.shape == () and seed.dtype == torch.int64 and seed.device == device
    if not (right if 0 < drop < 16 else drop == 0 and seed is None):
        raise ValueError(
            "the portable kernel drops 1 to 15 of 16 weights, by a seed (), int64 on the device of q, or none without "
            f"a seed; got {drop} and {given}"
        )
