"""The Hopper kernel as PyTorch operators, with gradients, which torch.compile keeps whole in its graph.

Shapes: B batch, T sequence, H query heads, K key/value heads, D head dim. The statistics are for the backward.
"""

# ruff: noqa: ARG001 - a shape function has the signature of its operator.

# No `from __future__ import annotations`: torch.library reads the annotations to infer the schemas.
import torch
from torch import Tensor

from model.attention.kernels.dense import fits
from model.attention.kernels.operators import differentiate, operator, shapes_of_gradients


def _shapes(
    q_BTHD: Tensor, k_BTKD: Tensor, v_BTKD: Tensor, causal: bool, query_offset: int
) -> tuple[Tensor, Tensor]:
    B, T, H, _ = q_BTHD.shape
    padded = (T + 3) // 4 * 4
    # The output is contiguous, whatever the strides of the inputs.
    return q_BTHD.new_empty(q_BTHD.shape), q_BTHD.new_empty(2, B, H, padded, dtype=torch.float32)


@operator(_shapes)
def hopper_attention(
    q_BTHD: Tensor, k_BTKD: Tensor, v_BTKD: Tensor, causal: bool, query_offset: int
) -> tuple[Tensor, Tensor]:
    """(o_BTHD, stats_2BHS). No gradient flows through the second output."""
    from model.attention.kernels import hopper

    with torch.cuda.device_of(q_BTHD):  # Triton launches on the current device
        return hopper.forward(*map(_dense, (q_BTHD, k_BTKD, v_BTKD)), causal, query_offset)


@operator(shapes_of_gradients)
def hopper_attention_backward(
    do_BTHD: Tensor, q_BTHD: Tensor, k_BTKD: Tensor, v_BTKD: Tensor, o_BTHD: Tensor, stats_2BHS: Tensor,
    causal: bool, query_offset: int, deterministic: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients (dq_BTHD, dk_BTKD, dv_BTKD)."""
    from model.attention.kernels import hopper

    dense = map(_dense, (do_BTHD, q_BTHD, k_BTKD, v_BTKD, o_BTHD))
    with torch.cuda.device_of(q_BTHD):
        return hopper.backward(*dense, stats_2BHS, causal, query_offset, deterministic)


def attend(
    q_BTHD: Tensor, k_BTKD: Tensor, v_BTKD: Tensor, causal: bool = True, query_offset: int = 0
) -> Tensor:
    """Attention in the seam's layout, without copies of any tensor with dense, aligned rows.

    The backward repeats its bits under torch.use_deterministic_algorithms(True).
    """
    o_BTHD, _ = hopper_attention(q_BTHD, k_BTKD, v_BTKD, causal, query_offset)
    return o_BTHD


def attend_fp8(
    q_BTHD: Tensor, k_BTKD: Tensor, v_BTKD: Tensor, scales_3BK: Tensor, causal: bool, query_offset: int
) -> Tensor:
    """Attention of E4M3 in bfloat16: no operator, as it has no gradients and no model calls it."""
    from model.attention.kernels import hopper

    with torch.cuda.device_of(q_BTHD):
        dense = map(_dense, (q_BTHD, k_BTKD, v_BTKD))
        o_BTHD, _ = hopper.forward(*dense, causal, query_offset, scales_3BK)
        return o_BTHD


# Like PyTorch's own operators, the backward reads the deterministic setting when it runs.
differentiate(
    hopper_attention, hopper_attention_backward, lambda: (torch.are_deterministic_algorithms_enabled(),)
)


def _dense(x: Tensor) -> Tensor:
    """A tensor that the kernel can address: a copy only if rows are strided or unaligned."""
    return x if fits(x) else x.contiguous()
