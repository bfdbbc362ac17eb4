"""Whatever PyTorch picks for itself: its fastest kernel that takes the case, on this device and version."""

from __future__ import annotations

from typing import TYPE_CHECKING

from model.attention import Backend, _reasons

if TYPE_CHECKING:
    from torch import Tensor


def attend(q_BTHD: Tensor, k_BTKD: Tensor, v_BTKD: Tensor, causal: bool) -> Tensor:
    """SDPA without a pinned kernel; which one ran is for the profiler to say."""
    from model.attention import _sdpa

    return _sdpa.free(q_BTHD, k_BTKD, v_BTKD, causal)


backend = Backend(
    summary="PyTorch SDPA, free to pick its kernel",
    unsupported_reasons=_reasons.basic,
    attend=attend,
)
