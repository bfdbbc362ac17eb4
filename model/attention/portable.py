"""FlashAttention in plain Triton, for NVIDIA and AMD GPUs (model/attention/kernels/portable)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from model.attention import Backend, Case, Kernels, Launches, Supports, _reasons
from model.attention.kernels.portable import HEAD_DIMS
from model.record import traffic, versions
from model.record.case import ELEMENT_BYTES

if TYPE_CHECKING:
    from torch import Tensor


def attend(q_BTHD: Tensor, k_BTKD: Tensor, v_BTKD: Tensor, causal: bool, dropout: float = 0.0) -> Tensor:
    """Tensors of any strides are read as they are; dK and dV are summed over each group in the kernel."""
    from model.attention.kernels.portable import (
        op,  # defines operators of PyTorch, which only their first call needs
    )

    return op.attend(q_BTHD, k_BTKD, v_BTKD, causal, dropout=dropout)


def attend_by_tile(
    q_BTHD: Tensor, k_BTKD: Tensor, v_BTKD: Tensor, causal: bool, tile: tuple[int, int], dropout: float = 0.0
) -> Tensor:
    """All kernels in such tiles; rows are queries of a whole group of heads."""
    from model.attention.kernels.portable import op

    return op.attend(q_BTHD, k_BTKD, v_BTKD, causal, size=tile, dropout=dropout)


def moves(case: Case, gpu: traffic.Gpu) -> traffic.Moved:
    """Forward as FlashAttention-2's, with two statistics a row; the backward is two kernels.

    One has tiles of queries: Q, dO, O and two statistics are read, dQ and delta written, 4ed + 12 bytes a
    row, and K and V by every tile. The other has tiles of keys: K and V are read, dK and dV written, 4ed a
    row, and Q, dO and three statistics are read by every tile, 2ed + 12.
    """
    import torch

    from model.attention.kernels.portable.tiles import FEW, for_gpu

    if traffic.uncovered(case) or case.sequence_length <= FEW:
        return traffic.Moved()
    own = for_gpu(gpu.capability, getattr(torch, case.dtype))
    forward, dq, dkdv = (
        case.tile or own[kernel][max(64, case.head_dim)][:2] for kernel in ("forward", "dq", "dkdv")
    )
    n, row = case.sequence_length, ELEMENT_BYTES[case.dtype] * case.head_dim
    keys, rows = traffic.keys_read(n, dq, case.causal), traffic.rows_read(n, dkdv, case.causal)
    head = n * (8 * row + 12) + keys * 2 * row + rows * (2 * row + 12)
    return traffic.Moved(traffic.by_queries_outside(case, forward, 8), case.batch * case.heads * head)


def unsupported_reasons(case: Case) -> list[str]:
    """Tiles have a power of two of columns."""
    reasons = [*_reasons.declared(case, SUPPORTS), *_reasons.tile(case)]
    if case.head_dim not in HEAD_DIMS and HEAD_DIMS[0] <= case.head_dim <= HEAD_DIMS[-1]:
        reasons.append(
            f"takes head dims that are powers of two, not {case.head_dim}: "
            "change model.dim or model.heads (the head dim is dim / heads)"
        )
    gpu = _reasons.gpu_capability(case)
    if case.dtype == "float32" and case.head_dim > 128 and gpu and gpu < (8, 0):
        reasons.append(
            "takes head dims up to 128 in float32 on this GPU, which has 64 KiB of shared memory for a tile: "
            "change model.dim or model.heads (the head dim is dim / heads)"
        )
    return reasons + (
        versions.lacking("attention=portable")
        or _reasons.package("triton", "jit", "install PyTorch for CUDA or ROCm on Linux, which brings it")
    )


SUPPORTS = Supports(
    offset=True,
    cached=True,
    dropout=True,
    layout="any",
    smallest_head_dim=HEAD_DIMS[0],
    largest_head_dim=HEAD_DIMS[-1],
    capability=((7, 5), None),
    amd=("gfx90a", "gfx942"),
    versions=versions.NEEDS["attention=portable"].releases,
)

backend = Backend(
    summary="This project's Triton kernels for any GPU: any length, deterministic",
    references=("dao2022flashattention", "dao2023flashattention2", "tillet2019triton"),
    unsupported_reasons=unsupported_reasons,
    attend=attend,
    attend_by_tile=attend_by_tile,
    launches=Launches(
        cuda=Kernels(forward=r"^_portable_forward", backward=r"^_portable_backward_(dq|dkdv)\b")
    ),
    supports=SUPPORTS,
    modules=("triton",),
    moves=moves,
)
