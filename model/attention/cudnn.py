"""NVIDIA cuDNN's fused attention, through PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from model.attention import Backend, Case, Kernels, Launches, Supports, _reasons

if TYPE_CHECKING:
    from torch import Tensor


def attend(q_BTHD: Tensor, k_BTKD: Tensor, v_BTKD: Tensor, causal: bool) -> Tensor:
    """SDPA's CUDNN_ATTENTION kernel alone."""
    from model.attention import _sdpa

    return _sdpa.pinned(_sdpa.CUDNN, q_BTHD, k_BTKD, v_BTKD, causal)


def unsupported_reasons(case: Case) -> list[str]:
    """sm80 or later in 16 bits; head dims depend on cuDNN's version, so PyTorch is asked."""
    if reasons := _reasons.declared(case, SUPPORTS):
        return reasons
    from model.attention import _sdpa

    return _sdpa.refusals(_sdpa.CUDNN, case)


SUPPORTS = Supports(
    dtypes=("bfloat16", "float16"), layout="any", capability=((8, 0), None), versions="cuDNN 9, from PyTorch"
)

backend = Backend(
    summary="PyTorch SDPA, NVIDIA cuDNN's kernel",
    unsupported_reasons=unsupported_reasons,
    attend=attend,
    launches=Launches(cuda=Kernels(forward=r"cudnn.*sdpa.*fprop", backward=r"cudnn.*sdpa.*bprop")),
    supports=SUPPORTS,
)
