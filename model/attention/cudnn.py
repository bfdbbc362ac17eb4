"""NVIDIA cuDNN's fused attention, through PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from model.attention import Backend, Case, _reasons

if TYPE_CHECKING:
    from torch import Tensor


def attend(q_BTHD: Tensor, k_BTKD: Tensor, v_BTKD: Tensor, causal: bool) -> Tensor:
    """SDPA's CUDNN_ATTENTION kernel alone."""
    from model.attention import _sdpa

    return _sdpa.pinned(_sdpa.CUDNN, q_BTHD, k_BTKD, v_BTKD, causal)


def unsupported_reasons(case: Case) -> list[str]:
    """sm80 or later in 16 bits; head dims depend on cuDNN's version, so PyTorch is asked."""
    reasons = (
        _reasons.nvidia_gpu(case)
        + _reasons.dtype(case, ("bfloat16", "float16"))
        + _reasons.capability(case, _reasons.from_sm80, "an Ampere or later GPU (8.0 and up)")
    )
    if reasons:
        return reasons
    from model.attention import _sdpa

    return _sdpa.refusals(_sdpa.CUDNN, case)


backend = Backend(
    summary="PyTorch SDPA, NVIDIA cuDNN's kernel",
    unsupported_reasons=unsupported_reasons,
    attend=attend,
)
