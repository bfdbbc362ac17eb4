"""PyTorch's plain attention: two matrix products and a softmax, with the T x T scores in memory.

In 16 bits PyTorch computes it in float32 inside, so that it is also the most exact of the SDPA kernels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from model.attention import Backend, Case, Kernels, Launches, Supports, _reasons

if TYPE_CHECKING:
    from torch import Tensor


def attend(q_BTHD: Tensor, k_BTKD: Tensor, v_BTKD: Tensor, causal: bool) -> Tensor:
    """SDPA's MATH kernel alone, also in a compiled model."""
    import torch

    from model.attention import _sdpa

    if torch.compiler.is_compiling():
        from model.attention import _math

        return _math.outside_the_graph(q_BTHD, k_BTKD, v_BTKD, causal)
    return _sdpa.pinned(_sdpa.MATH, q_BTHD, k_BTKD, v_BTKD, causal)


SUPPORTS = Supports(devices=("cuda", "cpu"), layout="BHTD", grouped="copied")
# Its GPU kernels are those of any matrix product and softmax: PyTorch's operators tell it from others.
KERNELS = Kernels(
    forward=r"^aten::_scaled_dot_product_attention_math$",
    backward=r"^(Safe)?SoftmaxBackward0$",
    operators=True,
    common_backward=True,
)


def unsupported_reasons(case: Case) -> list[str]:
    """Any device and precision; a sequence too long for the memory is found by running out of it."""
    return _reasons.declared(case, SUPPORTS)


backend = Backend(
    summary="PyTorch SDPA, plain matrix products: memory grows with T^2",
    unsupported_reasons=unsupported_reasons,
    attend=attend,
    launches=Launches(cuda=KERNELS, cpu=KERNELS),
    supports=SUPPORTS,
)
