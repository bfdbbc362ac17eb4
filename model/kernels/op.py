"""The Hopper kernel as PyTorch operators, with gradients, which torch.compile keeps whole in its graph.

Shapes: B batch, T sequence, H query heads, K key/value heads, D head dim. The kernel has no batch dimension: the
batch is folded into the heads, as a view of contiguous (B, H, T, D) tensors.
"""

# ruff: noqa: ARG001 - a shape function has the signature of its operator.

# No `from __future__ import annotations`: torch.library reads the annotations to infer the schemas.
import torch
from torch import Tensor


@torch.library.custom_op("assay::hopper_attention", mutates_args=())
def hopper_attention(q_BHTD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor) -> tuple[Tensor, Tensor]:
    """Causal attention: (o_BHTD, lse_BHT). No gradient flows through the second output."""
    from model.kernels import hopper

    B, H, T, _ = q_BHTD.shape
    o_HTD, lse_HT = hopper.forward(_fold(q_BHTD), _fold(k_BKTD), _fold(v_BKTD))
    return o_HTD.view(B, H, T, -1), lse_HT.view(B, H, T)


@torch.library.custom_op("assay::hopper_attention_backward", mutates_args=())
def hopper_attention_backward(
    do_BHTD: Tensor, q_BHTD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor, o_BHTD: Tensor, lse_BHT: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients (dq_BHTD, dk_BKTD, dv_BKTD)."""
    from model.kernels import hopper

    dq_HTD, dk_HTD, dv_HTD = hopper.backward(*map(_fold, (do_BHTD, q_BHTD, k_BKTD, v_BKTD, o_BHTD, lse_BHT)))
    return dq_HTD.view(q_BHTD.shape), _sum_group(dk_HTD, k_BKTD), _sum_group(dv_HTD, v_BKTD)


def attend(q_BTHD: Tensor, k_BTKD: Tensor, v_BTKD: Tensor) -> Tensor:
    """Causal attention in the seam's layout. The copies to (B, H, T, D) are plain PyTorch: they can be fused."""
    q_BHTD, k_BKTD, v_BKTD = (x.transpose(1, 2).contiguous() for x in (q_BTHD, k_BTKD, v_BTKD))
    o_BHTD, _ = hopper_attention(q_BHTD, k_BKTD, v_BKTD)
    return o_BHTD.transpose(1, 2)


@hopper_attention.register_fake
def _(q_BHTD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor) -> tuple[Tensor, Tensor]:
    return _like(q_BHTD), q_BHTD.new_empty(q_BHTD.shape[:-1], dtype=torch.float32)


@hopper_attention_backward.register_fake
def _(
    do_BHTD: Tensor, q_BHTD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor, o_BHTD: Tensor, lse_BHT: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return _like(q_BHTD), _like(k_BKTD), _like(v_BKTD)


def _save(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs, *output)


def _gradient(ctx, do_BHTD: Tensor, _dlse_BHT: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    return hopper_attention_backward(do_BHTD, *ctx.saved_tensors)


hopper_attention.register_autograd(_gradient, setup_context=_save)


def _fold(x: Tensor) -> Tensor:
    """(B, H, ...) to (B * H, ...). Free if contiguous, as all are except perhaps the incoming gradient."""
    return x.contiguous().flatten(0, 1)


def _sum_group(dx_HTD: Tensor, like_BKTD: Tensor) -> Tensor:
    """Per-query-head gradients to key/value heads: PyTorch sums 16 bits in float32 and rounds once."""
    B, K, T, D = like_BKTD.shape
    return dx_HTD.view(B, K, -1, T, D).sum(2)


def _like(x: Tensor) -> Tensor:
    """The kernel's results are contiguous, whatever the strides of its inputs."""
    return x.new_empty(x.shape)
