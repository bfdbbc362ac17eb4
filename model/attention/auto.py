"""Whatever PyTorch picks for itself: its fastest kernel that takes the case, on this device and version."""

from __future__ import annotations

from typing import TYPE_CHECKING

from model.attention import Backend, Case, Launches, Supports, _reasons

if TYPE_CHECKING:
    from torch import Tensor


def attend(q_BTHD: Tensor, k_BTKD: Tensor, v_BTKD: Tensor, causal: bool) -> Tensor:
    """SDPA without a pinned kernel; which one ran is for the profiler to say."""
    from model.attention import _sdpa

    return _sdpa.free(q_BTHD, k_BTKD, v_BTKD, causal)


SUPPORTS = Supports(devices=("cuda", "cpu"))


def unsupported_reasons(case: Case) -> list[str]:
    """PyTorch has a kernel for everything, but on a CPU picks one that is right in float32 alone."""
    return _reasons.declared(case, SUPPORTS) + _reasons.float32_on_cpu(case)


backend = Backend(
    summary="PyTorch SDPA, free to pick its kernel",
    unsupported_reasons=unsupported_reasons,
    attend=attend,
    # Held to be one of PyTorch's: `free` lets verify accept the kernels of the pinned backends.
    launches=Launches(free=True),
    supports=SUPPORTS,
)
