"""Whatever PyTorch picks for itself: its fastest kernel that takes the case, on this device and version."""

from __future__ import annotations

from model.attention import Backend, Case, Launches, Supports, _reasons, _sdpa

SUPPORTS = Supports(offset=True, cached=True, devices=("cuda", "cpu"))


def unsupported_reasons(case: Case) -> list[str]:
    """PyTorch has a kernel for everything, but the one that it picks on a CPU is right in float32 only."""
    return _reasons.declared(case, SUPPORTS) + _reasons.float32_on_cpu(case)


backend = Backend(
    summary="PyTorch SDPA, free to pick its kernel",
    references=("ansel2024pytorch",),
    unsupported_reasons=unsupported_reasons,
    attend=_sdpa.free,
    # It must still be one of PyTorch's: with `free`, verify accepts the kernels of the pinned backends.
    launches=Launches(free=True),
    supports=SUPPORTS,
)
