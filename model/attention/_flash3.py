"""FlashAttention-3's function, in the graph of torch.compile where the installed build can be."""

from __future__ import annotations

import re

import torch
from flash_attn_interface import flash_attn_func
from torch import Tensor

from model.attention import Attend
from model.errors import Unsupported

# What a build says that was made without some precisions or head dims; only the kernel itself knows.
_NOT_BUILT = re.compile(r"does not support|only supports")


def _attend(q_BTHD: Tensor, k_BTKD: Tensor, v_BTKD: Tensor, causal: bool) -> Tensor:
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


def _outside_the_graph(attend: Attend) -> Attend:
    outside: Attend = torch.compiler.disable(  # type: ignore[no-untyped-call]
        attend, reason="this build tells torch.compile no output shapes: a newer flash_attn_interface does"
    )
    return outside


_TELLS_SHAPES = hasattr(torch.ops.flash_attn_3, "_flash_attn_forward")
attend: Attend = _attend if _TELLS_SHAPES else _outside_the_graph(_attend)
