"""FlashAttention-4, written in CuTe, from its authors' package. It takes (B, T, H, D), as the seam does."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from model.attention import Backend, Case, Kernels, Launches, Supports, _reasons

if TYPE_CHECKING:
    from torch import Tensor


def attend(q_BTHD: Tensor, k_BTKD: Tensor, v_BTKD: Tensor, causal: bool) -> Tensor:
    """`flash_attn.cute.flash_attn_func`, which shares key heads within their group."""
    from flash_attn.cute import flash_attn_func

    result = flash_attn_func(q_BTHD, k_BTKD, v_BTKD, causal=causal)
    o_BTHD: Tensor = result[0] if isinstance(result, tuple) else result  # most versions add the LSE
    return o_BTHD


def unsupported_reasons(case: Case) -> list[str]:
    """Blackwell takes smaller head dims than Hopper. The package's name is also FlashAttention 2's."""
    gpu = _reasons.gpu_capability(case)
    largest = 128 if gpu is not None and gpu[0] >= 10 else 256
    return _reasons.declared(case, replace(SUPPORTS, largest_head_dim=largest)) + _reasons.cuda_package(
        case, "flash_attn.cute", "flash_attn_func", "pip install 'assay-studies[flash4]'"
    )


SUPPORTS = Supports(
    offset=True,
    cached=True,
    dtypes=("bfloat16", "float16"),
    layout="BTHD",
    largest_head_dim=256,  # 128 on Blackwell
    head_dim_multiple=8,
    capability=((9, 0), (11, 0)),
    amd=(),
    versions="flash-attn-4",
)

backend = Backend(
    summary="FlashAttention-4 (CuTe) for Hopper and Blackwell, the authors' package",
    references=("dao2022flashattention", "zadouri2026flashattention4"),
    unsupported_reasons=unsupported_reasons,
    attend=attend,
    launches=Launches(
        cuda=Kernels(forward=r"FlashAttentionForwardSm\d", backward=r"FlashAttentionBackwardSm\d")
    ),
    supports=SUPPORTS,
    modules=("flash_attn.cute",),
    packages=("flash-attn-4",),
    compiles=True,
    graph_break=lambda: "its package has no PyTorch operators, and compiles its kernels on the first call",
)
