"""One attention call of a running model, as an audit copies it.

Shapes: T sequence, G query heads that share a key head, D head dim.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

    from model.attention import Fp8


class Audit(NamedTuple):
    """The call that is audited: layer, sample and key head count from 0, steps from 1.

    Attributes:
        keys: number of keys, for a call that decodes a token; None: a call of training.
        part: which part of a sample whose tokens several processes share, counted from 0.
    """

    step: int
    layer: int
    sample: int
    kv_head: int
    keys: int | None = None
    part: int = 0


@dataclass
class Taken:
    """The copies from one call.

    Attributes:
        heads: G: the query heads from `audit.kv_head` x G on.
        tensors: q, o, do, dq (1, T, G, D), k, v, dk, dv (1, T, 1, D); a gradient that never came is missing.
        fp8, scales_3BK: of numbers of 8 bits, which have no gradients.
    """

    audit: Audit
    heads: int
    tensors: dict[str, Tensor] = field(default_factory=dict)
    fp8: Fp8 | None = None
    scales_3BK: Tensor | None = None

    def copy(self, name: str, x_BTHD: Tensor, sample: int, kv_head: int) -> None:
        """Copy what is audited of a tensor, whose samples and heads count from 0."""
        heads = self.heads if name[-1] in "qo" else 1
        first = kv_head * heads
        part = x_BTHD.detach()[sample : sample + 1, :, first : first + heads]
        self.tensors[name] = part.clone()
