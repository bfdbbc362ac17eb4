"""FlashAttention-4's function, which the graph of torch.compile leaves alone."""

from __future__ import annotations

import torch
from flash_attn.cute import flash_attn_func
from torch import Tensor

from model.attention import Attend


def _attend(q_BTHD: Tensor, k_BTKD: Tensor, v_BTKD: Tensor, causal: bool) -> Tensor:
    result = flash_attn_func(q_BTHD, k_BTKD, v_BTKD, causal=causal)
    o_BTHD: Tensor = result[0] if isinstance(result, tuple) else result  # most versions add the LSE
    return o_BTHD


attend: Attend = torch.compiler.disable(  # type: ignore[no-untyped-call]
    _attend, reason="its package has no PyTorch operators, and makes its kernels at the first call"
)
