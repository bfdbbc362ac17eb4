"""FlashAttention-3, for Hopper, from its authors' package. Its functions take (B, T, H, D), as the seam does.

The module is `flash_attn_interface`: `flash_attn` is FlashAttention-2, whatever the GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from model.attention import Backend, Case, Fp8, Kernels, Launches, Supports, _reasons
from model.record.errors import Unsupported

if TYPE_CHECKING:
    from torch import Tensor


def attend(q_BTHD: Tensor, k_BTKD: Tensor, v_BTKD: Tensor, causal: bool) -> Tensor:
    """`flash_attn_interface.flash_attn_func`, which shares key heads within their group.

    Raises:
        Unsupported: the installed build was made without this precision or head dim.
    """
    return _called(q_BTHD, k_BTKD, v_BTKD, causal)


def attend_fp8(q_BTHD: Tensor, k_BTKD: Tensor, v_BTKD: Tensor, causal: bool, scales_3BK: Tensor) -> Tensor:
    """The same function with numbers of 8 bits, whose scales it takes by sample and key head, also for Q.

    Raises:
        Unsupported: the installed build was made without this precision or head dim.
    """
    descale = dict(zip(("q_descale", "k_descale", "v_descale"), scales_3BK, strict=True))
    return _called(q_BTHD, k_BTKD, v_BTKD, causal, **descale)


def _called(q_BTHD: Tensor, k_BTKD: Tensor, v_BTKD: Tensor, causal: bool, **descale: Tensor) -> Tensor:
    from flash_attn_interface import flash_attn_func

    dense = (x if x.stride(-1) == 1 else x.contiguous() for x in (q_BTHD, k_BTKD, v_BTKD))
    try:
        result = flash_attn_func(*dense, causal=causal, **descale)
    except RuntimeError as error:
        if reason := _reasons.left_out(error, "flash_attn_interface"):
            raise Unsupported([reason]) from error
        raise
    o_BTHD: Tensor = result[0] if isinstance(result, tuple) else result  # older builds add the LSE
    return o_BTHD


def unsupported_reasons(case: Case) -> list[str]:
    """The package has no release: it is built from its repository."""
    return _reasons.declared(case, SUPPORTS, OF_8_BITS) + _reasons.cuda_package(
        case,
        "flash_attn_interface",
        "flash_attn_func",
        "build it in the folder `hopper` of the flash-attention repository (python setup.py install)",
    )


def graph_break() -> str:
    """Newer builds register an operator with PyTorch, which torch.compile keeps in its graph."""
    import flash_attn_interface  # noqa: F401  registers it
    import torch

    if hasattr(torch.ops.flash_attn_3, "_flash_attn_forward"):
        return ""
    return "this build does not tell torch.compile its output shapes; a newer flash_attn_interface does"


SUPPORTS = Supports(
    offset=True,
    cached=True,
    dtypes=("bfloat16", "float16"),
    layout="BTHD",
    largest_head_dim=256,
    head_dim_multiple=8,
    capability=((9, 0), (9, 1)),
    amd=(),
    versions="FlashAttention-3, built from its repository",
)

OF_8_BITS = Fp8(attend=attend_fp8, largest_head_dim=256, offset=True)

backend = Backend(
    summary="FlashAttention-3 for Hopper, the authors' package",
    references=("dao2022flashattention", "shah2024flashattention3"),
    unsupported_reasons=unsupported_reasons,
    attend=attend,
    launches=Launches(cuda=Kernels(forward=r"FlashAttnFwdSm\d", backward=r"FlashAttnBwdSm\d")),
    supports=SUPPORTS,
    modules=("flash_attn_interface",),
    packages=("flash_attn_3",),
    graph_break=graph_break,
    fp8=OF_8_BITS,
)
