"""Attention to sequences in parts: the keys that each part sees, whose gradients are added in float32.

If the gradients of K and V were summed in 16 bits, part after part, they would lose more precision than a
certificate allows.

Shapes: B batch, T sequence, H query heads, K key/value heads, D head dim, N a part's rows,
E keys up to its end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from model.record.case import Case

Call = Callable[[Tensor, Tensor, Tensor], Tensor]  # (q_BNHD, k_BEKD, v_BEKD) -> o_BNHD


def shared(x_BTKD: Tensor, case: Case) -> tuple[Tensor, ...]:
    """The keys or values that each part sees."""
    ends = tuple(part.sequence_length for part in case.parts)
    seen: tuple[Tensor, ...] = _Shared.apply(x_BTKD, ends)  # type: ignore[no-untyped-call]
    return seen


def joined(calls: Sequence[Call], q_BTHD: Tensor, keys: Sequence[Tensor], values: Sequence[Tensor]) -> Tensor:
    """The output of one call after another, each for as many queries, joined in this order."""
    parts_BNHD = q_BTHD.chunk(len(calls), dim=1)
    given = zip(calls, parts_BNHD, keys, values, strict=True)
    return torch.cat([call(q_BNHD, k_BEKD, v_BEKD) for call, q_BNHD, k_BEKD, v_BEKD in given], dim=1)


def added(parts_BEKD: Sequence[Tensor], length: int) -> Tensor:
    """The sum of gradients of the first keys, zero from there to a length, in float32 or wider."""
    B, _, K, D = parts_BEKD[0].shape
    wide = torch.promote_types(parts_BEKD[0].dtype, torch.float32)
    total_BTKD = parts_BEKD[0].new_zeros((B, length, K, D), dtype=wide)
    for part_BEKD in parts_BEKD:
        total_BTKD[:, : part_BEKD.shape[1]] += part_BEKD
    return total_BTKD


class _Shared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_BTKD: Tensor, ends: tuple[int, ...]) -> tuple[Tensor, ...]:
        ctx.length = x_BTKD.shape[1]
        return tuple(x_BTKD[:, :end] for end in ends)

    @staticmethod
    def backward(ctx: Any, *grads_BEKD: Tensor) -> tuple[Tensor, None]:
        return added(grads_BEKD, ctx.length).to(grads_BEKD[0].dtype), None
