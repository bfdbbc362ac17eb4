"""FlashAttention's algorithm in plain PyTorch: slow, exact, and made to be read (see `_tiled.py`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from model.attention import Backend, _reasons

if TYPE_CHECKING:
    from torch import Tensor


def attend(q_BTHD: Tensor, k_BTKD: Tensor, v_BTKD: Tensor, causal: bool) -> Tensor:
    """Tiles, online softmax, and scores computed again in the backward: memory grows with T."""
    from model.attention import _tiled

    return _tiled.attend(q_BTHD, k_BTKD, v_BTKD, causal)


backend = Backend(
    summary="FlashAttention's algorithm in plain PyTorch, the readable reference",
    unsupported_reasons=_reasons.basic,
    attend=attend,
)
