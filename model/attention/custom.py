"""The project's own kernel: FlashAttention for Hopper in Gluon, with PyTorch's own Triton (`kernels`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from model.attention import Backend, Case, Fp8, Kernels, Launches, Supports, _reasons
from model.record import traffic, versions
from model.record.case import ELEMENT_BYTES

if TYPE_CHECKING:
    from torch import Tensor


def attend(q_BTHD: Tensor, k_BTKD: Tensor, v_BTKD: Tensor, causal: bool) -> Tensor:
    """Grouped heads share K and V in the kernel, which reads the seam's layout without copies."""
    from model.attention.kernels import op  # defines operators of PyTorch, which only their first call needs

    # Under a mask the last query stands at the last key.
    return op.attend(q_BTHD, k_BTKD, v_BTKD, causal, (k_BTKD.shape[1] - q_BTHD.shape[1]) if causal else 0)


def attend_fp8(q_BTHD: Tensor, k_BTKD: Tensor, v_BTKD: Tensor, causal: bool, scales_3BK: Tensor) -> Tensor:
    """Numbers of 8 bits. V's transposition, which the tensor cores want, is a part of the call."""
    from model.attention.kernels import op

    offset = k_BTKD.shape[1] - q_BTHD.shape[1] if causal else 0
    return op.attend_fp8(q_BTHD, k_BTKD, v_BTKD, scales_3BK, causal, offset)


def moves(case: Case, gpu: traffic.Gpu) -> traffic.Moved:
    """Tiles are read whole, and each block of queries reads its own; dQ is added up in float32.

    Statistics: two float32 numbers a row. The pass before the backward reads those and writes four, and up to
    head dim 128 another 32 in the precision of the tensors, which the tiles of keys read.
    """
    if traffic.uncovered(case):
        return traffic.Moved()
    from model.attention.kernels.hopper import _backward, _backward_wide, _forward

    n, dim, heads = case.sequence_length, case.head_dim, case.batch * case.heads
    rows = _forward.ROWS * _forward.consumers(dim, case.causal, n, n, heads, gpu.processors)
    keys = (_backward if dim <= 128 else _backward_wide).KEYS
    packed = 16 + (32 * ELEMENT_BYTES[case.dtype] if dim <= 128 else 0)
    return traffic.Moved(
        traffic.by_queries_outside(case, (rows, _forward.KEYS[dim]), 8),
        traffic.by_adding_dq(case, (_backward.queries(dim), keys), 8 + packed, packed),
    )


def unsupported_reasons(case: Case) -> list[str]:
    """Written for Hopper and three head dims, with 32-bit offsets, in some versions of Gluon."""
    reasons = _reasons.declared(case, SUPPORTS, OF_8_BITS)
    if case.head_dim == 192:
        reasons.append("takes head dims 64, 128 and 256, not 192: change model.dim or model.heads")
    rows = case.batch * case.heads * (case.sequence_length + 3)
    if max(case.batch, case.heads) > 65535 or rows >= 2**30:
        reasons.append(
            "counts rows of statistics in 32 bits and takes at most 65535 heads or batches, which this case "
            "exceeds: lower train.batch_size or train.sequence_length"
        )
    return reasons + lacking(case)


def lacking(case: Case) -> list[str]:
    """Why Gluon, which is experimental and still changes, cannot be used here."""
    return versions.lacking("attention=custom") or _reasons.cuda_package(
        case,
        "triton.experimental.gluon.language.nvidia.hopper",
        "tma",
        "install PyTorch 2.11 for CUDA, which brings triton 3.6",
    )


SUPPORTS = Supports(
    offset=True,
    cached=True,
    dtypes=("bfloat16", "float16"),
    float32_lost="which Hopper's matrix instructions would round to TF32",
    layout="BTHD",
    smallest_head_dim=64,
    largest_head_dim=256,
    head_dim_multiple=64,
    capability=((9, 0), (9, 1)),
    amd=(),
    versions=versions.NEEDS["attention=custom"].releases,
)

OF_8_BITS = Fp8(attend=attend_fp8, head_dim_multiple=64, offset=True, keys_summed=128)

backend = Backend(
    summary="This project's Gluon kernel for Hopper: head dims 64, 128 and 256",
    references=("dao2022flashattention", "shah2024flashattention3", "tillet2019triton"),
    keeps="output",
    unsupported_reasons=unsupported_reasons,
    attend=attend,
    launches=Launches(
        cuda=Kernels(
            forward=r"^_(forward|merge|transpose)_kernel\b", backward=r"^_backward_((before|after)_)?kernel\b"
        )
    ),
    supports=SUPPORTS,
    modules=("triton",),
    fp8=OF_8_BITS,
    moves=moves,
)
