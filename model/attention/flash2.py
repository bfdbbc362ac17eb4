"""FlashAttention-2, from its authors' package `flash_attn`, which takes (B, T, H, D) as the seam does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from model.attention import Backend, Case, Kernels, Launches, Supports, _reasons
from model.record import traffic
from model.record.errors import Unsupported

if TYPE_CHECKING:
    from torch import Tensor


def attend(q_BTHD: Tensor, k_BTKD: Tensor, v_BTKD: Tensor, causal: bool, dropout: float = 0.0) -> Tensor:
    """`flash_attn.flash_attn_func`, which shares key heads within their group.

    Raises:
        Unsupported: the installed build was made without this precision or head dim.
    """
    from flash_attn import flash_attn_func

    # Its forward copies what is not dense along a head; its backward raises, as gradients are like inputs.
    dense = (x if x.stride(-1) == 1 else x.contiguous() for x in (q_BTHD, k_BTKD, v_BTKD))
    try:
        o_BTHD: Tensor = flash_attn_func(*dense, dropout, causal=causal)
    except RuntimeError as error:
        if reason := _reasons.left_out(error, "flash_attn"):
            raise Unsupported([reason]) from error
        raise
    return o_BTHD


def unsupported_reasons(case: Case) -> list[str]:
    """The package must be FlashAttention 2: that of FlashAttention 4 has the same name."""
    return _reasons.declared(case, SUPPORTS) + _reasons.cuda_package(
        case, "flash_attn", "flash_attn_func", "pip install 'assay-studies[flash2]'"
    )


SUPPORTS = Supports(
    offset=True,
    cached=True,
    dropout=True,
    dtypes=("bfloat16", "float16"),
    layout="BTHD",
    largest_head_dim=256,
    capability=((8, 0), None),
    amd=(),
    versions="flash-attn 2.7 or later",
)

backend = Backend(
    summary="FlashAttention-2, the authors' package",
    references=("dao2022flashattention", "dao2023flashattention2"),
    unsupported_reasons=unsupported_reasons,
    attend=attend,
    # PyTorch's build of the same kernels is in the namespace pytorch_flash, which \b excludes.
    launches=Launches(cuda=Kernels(forward=r"\bflash::flash_fwd", backward=r"\bflash::flash_bwd")),
    supports=SUPPORTS,
    modules=("flash_attn",),
    packages=("flash-attn",),
    moves=traffic.by_flash_2,
)
