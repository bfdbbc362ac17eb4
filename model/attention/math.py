"""PyTorch's plain attention: two matrix products and a softmax, with the T x T scores in memory.

In 16 bits PyTorch computes it in float32 inside, which also makes it the most exact of the SDPA kernels.

In a graph of torch.compile the pin does not hold: MATH becomes matrix products and a softmax, which
inductor's pass `fuse_attention` recognises and replaces with a FlashAttention kernel (seen with torch 2.13 on
a CPU, float32, equal numbers of query and key heads).
"""

from __future__ import annotations

from model.attention import Backend, Case, Kernels, Launches, Supports, _reasons, _sdpa
from model.record import traffic

SUPPORTS = Supports(
    offset=True, cached=True, dropout=True, devices=("cuda", "cpu"), layout="BHTD", grouped="copied"
)
# Its GPU kernels are those of any matrix product and softmax; only PyTorch's operators identify it.
KERNELS = Kernels(
    forward=r"^aten::_scaled_dot_product_attention_math$",
    backward=r"^(Safe)?SoftmaxBackward0$",
    operators=True,
    common_backward=True,
)


def unsupported_reasons(case: Case) -> list[str]:
    """Any device and precision. Whether the T x T scores fit in memory shows only when it runs."""
    return _reasons.declared(case, SUPPORTS)


backend = Backend(
    summary="PyTorch SDPA, plain matrix products: memory grows with T^2",
    references=("ansel2024pytorch",),
    keeps="weights",
    unsupported_reasons=unsupported_reasons,
    attend=_sdpa.pin(_sdpa.MATH),
    launches=Launches(cuda=KERNELS, cpu=KERNELS),
    supports=SUPPORTS,
    graph_break=lambda: "in a graph, inductor would replace MATH with a FlashAttention kernel",
    moves=traffic.by_scores,
)
