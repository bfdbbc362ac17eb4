"""SDPA's MATH kernel for models that torch.compile traces. Imports `torch._dynamo`: for nobody else.

Inside a graph the pin does not hold: MATH becomes matrix products and a softmax, which inductor's pass
`fuse_attention` recognises and replaces by a FlashAttention kernel (seen with torch 2.13 on a CPU, float32,
equal numbers of query and key heads).
"""

from __future__ import annotations

from functools import partial

import torch

from model.attention import Attend
from model.attention._sdpa import MATH, pinned

outside_the_graph: Attend = torch.compiler.disable(  # type: ignore[no-untyped-call]
    partial(pinned, MATH),
    reason="in a graph, inductor would put a FlashAttention kernel in the place of MATH",
)
