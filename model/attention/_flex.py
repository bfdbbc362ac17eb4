"""flex_attention, compiled, in the seam's layout."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from model.attention import Attend

BLOCK = 128  # flex_attention's own block of queries and of keys
SHAPES = 64  # shapes and precisions in one process, each compiled once; beyond them it raises


def _attend(q_BTHD: Tensor, k_BTKD: Tensor, v_BTKD: Tensor, causal: bool) -> Tensor:
    """One layout for all inputs, because each new one would be compiled again; the model's already has it."""
    q_BHTD, k_BKTD, v_BKTD = (x.contiguous().transpose(1, 2) for x in (q_BTHD, k_BTKD, v_BTKD))
    mask = _causal_blocks(q_BTHD.shape[1], q_BTHD.device) if causal else None
    grouped = q_BHTD.shape[1] != k_BKTD.shape[1]
    with torch._dynamo.config.patch(recompile_limit=SHAPES):
        o_BHTD: Tensor = _compiled()(q_BHTD, k_BKTD, v_BKTD, block_mask=mask, enable_gqa=grouped)
    return o_BHTD.transpose(1, 2)


# Compiled by itself, with what is its own: the model's graph ends before it, whether it is compiled or not.
attend: Attend = torch.compiler.disable(  # type: ignore[no-untyped-call]
    _attend, reason="flex_attention is compiled by itself, so that it is its kernel or an error"
)


@cache
def _compiled() -> Callable[..., Tensor]:
    """`fullgraph`, so that it is the kernel or an error: uncompiled it would compute all T x T scores."""
    compiled: Callable[..., Tensor] = torch.compile(flex_attention, fullgraph=True)
    return compiled


def _before(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return key <= query


@cache
def _causal_blocks(length: int, device: torch.device) -> BlockMask:
    """The causal mask by blocks: of row i the blocks before i are whole, and block i is cut by the diagonal.

    Written down instead of found out from the T x T mask, which `create_block_mask` would build. In a last
    row that is shorter than a block every block is cut.
    """
    blocks = -(-length // BLOCK)
    row = torch.arange(blocks, device=device, dtype=torch.int32)
    cut_counts, whole_counts = torch.ones_like(row), row.clone()
    cut, whole = row[:, None].repeat(1, blocks), row[None, :].repeat(blocks, 1)
    if length % BLOCK:
        cut_counts[-1], whole_counts[-1], cut[-1] = blocks, 0, row
    return BlockMask.from_kv_blocks(
        cut_counts[None, None],
        cut[None, None],
        whole_counts[None, None],
        whole[None, None],
        BLOCK_SIZE=BLOCK,
        mask_mod=_before,
        seq_lengths=(length, length),
    )
