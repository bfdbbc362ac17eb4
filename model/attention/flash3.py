"""FlashAttention-3, for Hopper, from its authors' package. Its functions take (B, T, H, D), as the seam does.

The module is `flash_attn_interface`: `flash_attn` is FlashAttention-2, whatever the GPU.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

from model.attention import Attend, Backend, Case, Kernels, Launches, Supports, _reasons
from model.errors import Unsupported

if TYPE_CHECKING:
    from torch import Tensor

# What a build says that was made without some precisions or head dims; only the kernel itself knows.
_NOT_BUILT = re.compile(r"does not support|only supports")


def attend(q_BTHD: Tensor, k_BTKD: Tensor, v_BTKD: Tensor, causal: bool) -> Tensor:
    """`flash_attn_interface.flash_attn_func`: (batch, sequence, heads, head dim), grouped heads too."""
    return _outside_the_graph()(q_BTHD, k_BTKD, v_BTKD, causal)


@cache
def _outside_the_graph() -> Attend:
    """Not every version tells torch.compile its output shapes: the compiler leaves this call alone."""
    import torch
    from flash_attn_interface import flash_attn_func

    def call(q_BTHD: Tensor, k_BTKD: Tensor, v_BTKD: Tensor, causal: bool) -> Tensor:
        dense = (x if x.stride(-1) == 1 else x.contiguous() for x in (q_BTHD, k_BTKD, v_BTKD))
        try:
            result = flash_attn_func(*dense, causal=causal)
        except RuntimeError as error:
            if _NOT_BUILT.search(str(error)):
                said = " ".join(str(error).split())
                raise Unsupported([f"{said}: build flash_attn_interface with it"]) from error
            raise
        o_BTHD: Tensor = result[0] if isinstance(result, tuple) else result  # older ones add the LSE
        return o_BTHD

    opaque: Attend = torch.compiler.disable(call)  # type: ignore[no-untyped-call]
    return opaque


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
