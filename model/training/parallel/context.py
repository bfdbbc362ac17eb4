"""Context parallelism: processes that share each sample's tokens, and attend to the keys of all of them.

Each sequence is cut into two parts for each of C processes. Process c has parts c and 2C - 1 - c: late parts
see more keys than early ones, and so each process computes as many scores. K and V are gathered from all
processes, as for Llama 3 (Grattafiori et al. 2024, arXiv:2407.21783, section 3.3.2); their gradients are
added in float32, here and over the processes.

Shapes: B batch, T sequence, S a process's tokens, H query heads, K key/value heads, D head dim, C processes,
N a part's rows, E keys up to its end.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import partial
from typing import Any

import torch
from torch import Tensor, distributed

from model import attention
from model.attention import Backend, Case, _parts
from model.training.llama import Attend
from model.training.parallel.own import Own
from model.training.parallel.world import World

# The names until PyTorch 2.12, which warns of them from 2.13 on.
_all_gather = getattr(distributed, "all_gather_single", distributed.all_gather_into_tensor)
_reduce_scatter = getattr(distributed, "reduce_scatter_single", distributed.reduce_scatter_tensor)


def places(rank: int, context: int) -> tuple[int, int]:
    """The parts of each sequence that a process has, of 2 x `context`, by its rank in its group."""
    return rank, 2 * context - 1 - rank


def mine(x: Tensor, world: World, dim: int = 1) -> Tensor:
    """This process's tokens from a tensor of all, in its own order; the tensor itself if it has them all."""
    context = world.parallel.context
    if context == 1:
        return x
    cut = x.chunk(2 * context, dim)
    return torch.cat([cut[place] for place in places(world.context_rank, context)], dim)


class Shared:
    """Attention of one process's tokens, (q_BSHD, k_BSKD, v_BSKD) -> o_BSHD, all of them in `mine`'s order.

    All processes that share the tokens must call it, and its backward pass, in the same order.

    Args:
        case: with `context`, as `RunConfig.attention_case` has it.
        outside_graphs: the blocks are compiled, and their graphs must be interrupted for it.
    """

    def __init__(self, backend: Backend, case: Case, world: World, outside_graphs: bool = False) -> None:
        assert world.mesh is not None
        self._group, self._own = world.mesh.get_group("context"), world.own
        self.cases = [case.parts[place] for place in places(world.context_rank, case.context)]
        self.calls: list[_parts.Call] = [partial(attention.attend, backend, part) for part in self.cases]
        self._run: Attend = self._eager
        if outside_graphs:
            why = "keys of other processes are gathered"
            self._run = torch.compiler.disable(self._eager, reason=why)  # type: ignore[no-untyped-call]

    def __call__(self, q_BSHD: Tensor, k_BSKD: Tensor, v_BSKD: Tensor) -> Tensor:
        """Output for this process's tokens."""
        return self._run(q_BSHD, k_BSKD, v_BSKD)

    def tapped(self, number: int, around: Callable[[Attend], Attend]) -> Shared:
        """The same, not for graphs, with one of the calls wrapped."""
        tapped = copy(self)
        tapped.calls = [around(call) if n == number else call for n, call in enumerate(self.calls)]
        tapped._run = tapped._eager
        return tapped

    def _eager(self, q_BSHD: Tensor, k_BSKD: Tensor, v_BSKD: Tensor) -> Tensor:
        ends = tuple(part.sequence_length for part in self.cases)
        seen: tuple[Tensor, ...] = _Gathered.apply(k_BSKD, v_BSKD, self._group, ends, self._own)  # type: ignore[no-untyped-call]
        return _parts.joined(self.calls, q_BSHD, seen[: len(ends)], seen[len(ends) :])


class _Gathered(torch.autograd.Function):
    """K up to each end, then V up to each end, of the keys of all processes."""

    @staticmethod
    def forward(
        ctx: Any,
        k_BSKD: Tensor,
        v_BSKD: Tensor,
        group: distributed.ProcessGroup,
        ends: tuple[int, ...],
        own: Own,
    ) -> tuple[Tensor, ...]:
        ctx.group, ctx.own, ctx.length = group, own, k_BSKD.shape[1] * group.size()
        own_2BSKD = torch.stack((k_BSKD, v_BSKD))
        all_C2BSKD = own_2BSKD.new_empty((group.size(), *own_2BSKD.shape))
        with own.apart():
            _all_gather(all_C2BSKD.flatten(0, 1), own_2BSKD, group=group)
        k_BTKD, v_BTKD = _in_order(all_C2BSKD)
        return *(k_BTKD[:, :end] for end in ends), *(v_BTKD[:, :end] for end in ends)

    @staticmethod
    def backward(ctx: Any, *grads_BEKD: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        ends = len(grads_BEKD) // 2
        of_k, of_v = (_parts.added(x, ctx.length) for x in (grads_BEKD[:ends], grads_BEKD[ends:]))
        total_2BTKD = torch.stack((of_k, of_v))
        all_C2BSKD = _by_process(total_2BTKD, ctx.group.size())
        own_2BSKD = torch.empty_like(all_C2BSKD[0])
        with ctx.own.apart():
            _reduce_scatter(own_2BSKD, all_C2BSKD.flatten(0, 1), group=ctx.group)
        dk_BSKD, dv_BSKD = own_2BSKD.to(grads_BEKD[0].dtype)
        return dk_BSKD, dv_BSKD, None, None, None


def _in_order(all_C2BSKD: Tensor) -> Tensor:
    """Every process's tokens, put into the order of positions: (2, B, T, K, D)."""
    context = all_C2BSKD.shape[0]
    all_C2B2NKD = all_C2BSKD.unflatten(3, (2, -1))  # type: ignore[no-untyped-call]  # torch leaves it unannotated
    B, N, K, D = (all_C2B2NKD.shape[axis] for axis in (2, 4, 5, 6))
    ordered = all_C2BSKD.new_empty((2, B, 2 * context, N, K, D))
    for rank in range(context):
        for half, place in enumerate(places(rank, context)):
            ordered[:, :, place] = all_C2B2NKD[rank, :, :, half]
    return ordered.flatten(2, 3)


def _by_process(ordered_2BTKD: Tensor, context: int) -> Tensor:
    """The inverse of `_in_order`: (C, 2, B, S, K, D)."""
    cut = ordered_2BTKD.chunk(2 * context, dim=2)
    return torch.stack(
        [torch.cat([cut[place] for place in places(rank, context)], dim=2) for rank in range(context)]
    )
