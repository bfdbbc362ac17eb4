"""FlashAttention's algorithm in plain PyTorch: slow, exact, and made to be read (see `_tiled.py`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from model.attention import Backend, Case, Kernels, Launches, Supports, _reasons

if TYPE_CHECKING:
    from torch import Tensor


def attend(q_BTHD: Tensor, k_BTKD: Tensor, v_BTKD: Tensor, causal: bool) -> Tensor:
    """Tiles, online softmax, and scores computed again in the backward: memory grows with T."""
    from model.attention import _tiled

    return _tiled.attend(q_BTHD, k_BTKD, v_BTKD, causal)


SUPPORTS = Supports(devices=("cuda", "cpu"))
# Matrix products and exponentials of PyTorch's; the autograd function around them tells it from others.
KERNELS = Kernels(forward=r"^_Tiled$", backward=r"^_TiledBackward$", operators=True)


def unsupported_reasons(case: Case) -> list[str]:
    """Plain PyTorch runs everywhere."""
    return _reasons.declared(case, SUPPORTS)


backend = Backend(
    summary="FlashAttention's algorithm in plain PyTorch, the readable reference",
    unsupported_reasons=unsupported_reasons,
    attend=attend,
    launches=Launches(cuda=KERNELS, cpu=KERNELS),
    supports=SUPPORTS,
)
