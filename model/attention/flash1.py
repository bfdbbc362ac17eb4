"""FlashAttention as first published, which shows what later versions gained."""

from __future__ import annotations

from typing import TYPE_CHECKING

from model.attention import Backend, Case, Kernels, Launches, Supports, _reasons
from model.record import traffic, versions

if TYPE_CHECKING:
    from torch import Tensor


def attend(q_BTHD: Tensor, k_BTKD: Tensor, v_BTKD: Tensor, causal: bool) -> Tensor:
    """Tensors of any strides are read as they are; dK and dV are summed over each group in float32."""
    from model.attention.kernels import flash1  # imports triton, and defines operators of PyTorch

    return flash1.attend(q_BTHD, k_BTKD, v_BTKD, causal)


def attend_by_tile(
    q_BTHD: Tensor, k_BTKD: Tensor, v_BTKD: Tensor, causal: bool, tile: tuple[int, int]
) -> Tensor:
    """Both passes in such tiles."""
    from model.attention.kernels import flash1

    return flash1.attend(q_BTHD, k_BTKD, v_BTKD, causal, tile)


def moves(case: Case, gpu: traffic.Gpu) -> traffic.Moved:
    """By the tiles of each pass on this GPU."""
    import torch
    import triton

    from model.attention.kernels.flash1 import for_gpu

    tiles = for_gpu(gpu.capability, getattr(torch, case.dtype))
    columns = max(64, triton.next_power_of_2(case.head_dim))
    forward, backward = (tiles[way, columns] for way in ("forward", "backward"))
    return traffic.by_keys_outside(
        case, case.tile or (forward.rows, forward.keys), case.tile or (backward.rows, backward.keys)
    )


def unsupported_reasons(case: Case) -> list[str]:
    """Written in Triton, as `portable` is."""
    return [*_reasons.declared(case, SUPPORTS), *_reasons.tile(case)] + (
        versions.lacking("attention=flash1")
        or _reasons.cuda_package(case, "triton", "jit", "install PyTorch for CUDA on Linux, which brings it")
    )


SUPPORTS = Supports(
    offset=True,
    cached=True,
    smallest_head_dim=16,
    largest_head_dim=128,
    head_dim_multiple=8,
    capability=((7, 5), None),
    amd=(),
    versions=versions.NEEDS["attention=flash1"].releases,
)

backend = Backend(
    summary="FlashAttention-1 as published, in Triton: one program per head, state in memory",
    references=("dao2022flashattention", "tillet2019triton"),
    holds="float32",
    unsupported_reasons=unsupported_reasons,
    attend=attend,
    attend_by_tile=attend_by_tile,
    launches=Launches(cuda=Kernels(forward=r"^_flash1_forward\b", backward=r"^_flash1_backward\b")),
    supports=SUPPORTS,
    modules=("triton",),
    moves=moves,
)
