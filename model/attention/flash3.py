"""FlashAttention-3, for Hopper, from its authors' package. Its functions take (B, T, H, D), as the seam does.

The module is `flash_attn_interface`: `flash_attn` is FlashAttention-2, whatever the GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from model.attention import Backend, Case, Kernels, Launches, Supports, _reasons

if TYPE_CHECKING:
    from torch import Tensor


def attend(q_BTHD: Tensor, k_BTKD: Tensor, v_BTKD: Tensor, causal: bool) -> Tensor:
    """`flash_attn_interface.flash_attn_func`: (batch, sequence, heads, head dim), grouped heads too."""
    from model.attention import _flash3

    return _flash3.attend(q_BTHD, k_BTKD, v_BTKD, causal)


def unsupported_reasons(case: Case) -> list[str]:
    """Hopper, 16 bits, head dims up to 256 in steps of 8, and a build of its own."""
    return _reasons.declared(case, SUPPORTS) + _reasons.package(
        "flash_attn_interface",
        "flash_attn_func",
        "build it in the folder `hopper` of the flash-attention repository (python setup.py install)",
    )


SUPPORTS = Supports(
    dtypes=("bfloat16", "float16"),
    layout="BTHD",
    largest_head_dim=256,
    head_dim_multiple=8,
    capability=((9, 0), (9, 1)),
    versions="FlashAttention-3, built from its repository",
)

backend = Backend(
    summary="FlashAttention-3 for Hopper, the authors' package",
    unsupported_reasons=unsupported_reasons,
    attend=attend,
    launches=Launches(cuda=Kernels(forward=r"FlashAttnFwdSm\d", backward=r"FlashAttnBwdSm\d")),
    supports=SUPPORTS,
    modules=("flash_attn_interface",),
)
