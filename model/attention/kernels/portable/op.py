"""The portable kernels as PyTorch operators, with gradients, which torch.compile keeps whole in its graph."""

# ruff: noqa: ARG001 - a shape function has the signature of its operator.

# No `from __future__ import annotations`: torch.library reads the annotations to infer the schemas.
from collections.abc import Sequence

import torch
from torch import Tensor

from model.attention.kernels.operators import differentiate, operator, shapes_of_gradients
from model.attention.kernels.portable.checks import check


def attend(
    q_BTHD: Tensor, k_BUKD: Tensor, v_BUKD: Tensor, causal: bool, offset: int | None = None,
    size: tuple[int, int] | None = None, dropout: float = 0.0,
) -> Tensor:  # fmt: skip
    """softmax(Q K^T / sqrt(D)) V, of tensors with any strides.

    Args:
        offset: the key at which the first query stands, which matters under the causal mask. By default the last query
            stands at the last key: that is training, where T = U, and decoding, where new queries follow old keys.
        size: rows and keys of all tiles; by default each kernel's own (`tiles`).
        dropout: probability of a weight to become 0, a multiple of 1/16; PyTorch's generator gives the seed.

    Raises:
        ValueError: another probability, or what the kernels do not take.
    """
    drop = round(16 * dropout)
    if drop != 16 * dropout:
        raise ValueError(f"dropout is a multiple of 1/16, not {dropout}")
    seed = torch.randint(2**63 - 1, (), device=q_BTHD.device) if drop else None
    at = k_BUKD.shape[1] - q_BTHD.shape[1] if offset is None else offset
    o_BTHD: Tensor = portable_attention(q_BTHD, k_BUKD, v_BUKD, causal, at, size, drop, seed)[0]
    return o_BTHD


def _shapes(
    q_BTHD: Tensor,
    k_BUKD: Tensor,
    v_BUKD: Tensor,
    causal: bool,
    offset: int,
    size: Sequence[int] | None = None,
    drop: int = 0,
    seed: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    check(q_BTHD, k_BUKD, v_BUKD, offset)
    (B, T, H, _), K = q_BTHD.shape, k_BUKD.shape[2]
    # The output is contiguous, whatever the strides of the inputs.
    return q_BTHD.new_empty(q_BTHD.shape), q_BTHD.new_empty((2, B, K, T * (H // K)), dtype=torch.float32)


@operator(_shapes)
def portable_attention(
    q_BTHD: Tensor,
    k_BUKD: Tensor,
    v_BUKD: Tensor,
    causal: bool,
    offset: int,
    size: Sequence[int] | None = None,
    drop: int = 0,
    seed: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """(o_BTHD, lse_2BKR). No gradient flows through the second output."""
    from model.attention.kernels.portable import forward

    with torch.cuda.device_of(q_BTHD):  # Triton launches on the current device
        return forward.forward(q_BTHD, k_BUKD, v_BUKD, causal, offset, size, drop, seed)


@operator(shapes_of_gradients)
def portable_attention_backward(
    do_BTHD: Tensor, q_BTHD: Tensor, k_BUKD: Tensor, v_BUKD: Tensor, o_BTHD: Tensor, lse_2BKR: Tensor,
    causal: bool, offset: int, size: Sequence[int] | None = None, drop: int = 0, seed: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients (dq_BTHD, dk_BUKD, dv_BUKD)."""
    from model.attention.kernels.portable import backward

    with torch.cuda.device_of(q_BTHD):
        return backward.backward(
            do_BTHD, q_BTHD, k_BUKD, v_BUKD, o_BTHD, lse_2BKR, causal, offset, size, drop, seed
        )


differentiate(portable_attention, portable_attention_backward)
