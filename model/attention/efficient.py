"""PyTorch's memory-efficient kernel (from xFormers). It knows no grouped heads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from model.attention import Backend, Case, Kernels, Launches, Supports, _reasons

if TYPE_CHECKING:
    from torch import Tensor


def attend(q_BTHD: Tensor, k_BTKD: Tensor, v_BTKD: Tensor, causal: bool) -> Tensor:
    """SDPA's EFFICIENT_ATTENTION kernel alone. K and V are copied once per query head, which is timed."""
    from model.attention import _sdpa

    k_BTHD, v_BTHD = (_sdpa.repeat_heads(x, q_BTHD.shape[2]) for x in (k_BTKD, v_BTKD))
    return _sdpa.pinned(_sdpa.EFFICIENT, q_BTHD, k_BTHD, v_BTHD, causal)


def unsupported_reasons(case: Case) -> list[str]:
    """An NVIDIA GPU, and PyTorch's own word on the rest."""
    if reasons := _reasons.declared(case, SUPPORTS):
        return reasons
    from model.attention import _sdpa

    return _sdpa.refusals(_sdpa.EFFICIENT, case, repeats_heads=True)


SUPPORTS = Supports(layout="any", grouped="copied", capability=((5, 0), None))

backend = Backend(
    summary="PyTorch SDPA, memory-efficient kernel; repeats K and V for grouped heads",
    unsupported_reasons=unsupported_reasons,
    attend=attend,
    launches=Launches(cuda=Kernels(forward=r"fmha_cutlassF", backward=r"fmha_cutlassB")),
    supports=SUPPORTS,
)
