"""PyTorch's flex_attention: a Triton kernel compiled for this mask, these heads and this GPU.

It is compiled by itself, with its own settings. The model's graph ends before it, compiled or not. Importing
flex_attention imports `torch._dynamo`, so that is left to the first call.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

from model.attention import Backend, Case, Kernels, Launches, Supports, _reasons

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.nn.attention.flex_attention import BlockMask

BLOCK = 128  # flex_attention's own block of queries and of keys
SHAPES = 64  # shapes and precisions in one process, each compiled once; beyond them it raises


def attend(q_BTHD: Tensor, k_BTKD: Tensor, v_BTKD: Tensor, causal: bool) -> Tensor:
    """Grouped heads share K and V in the kernel; blocks of keys that no query may see are skipped.

    All inputs get one layout, which the model's already have: each new layout would be compiled again.
    """
    q_BHTD, k_BKTD, v_BKTD = (x.contiguous().transpose(1, 2) for x in (q_BTHD, k_BTKD, v_BTKD))
    import torch

    mask = _causal_blocks(q_BTHD.shape[1], k_BTKD.shape[1], q_BTHD.device) if causal else None
    grouped = q_BHTD.shape[1] != k_BKTD.shape[1]
    compiled = _compiled()
    with torch._dynamo.config.patch(recompile_limit=SHAPES):
        o_BHTD: Tensor = compiled(q_BHTD, k_BKTD, v_BKTD, block_mask=mask, enable_gqa=grouped)
    return o_BHTD.transpose(1, 2)


@cache
def _compiled() -> Callable[..., Tensor]:
    """`fullgraph`, so that it is the kernel or an error: uncompiled it would compute all T x T scores."""
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    compiled: Callable[..., Tensor] = torch.compile(flex_attention, fullgraph=True)
    return compiled


Seen = Callable[["Tensor", "Tensor", "Tensor", "Tensor"], "Tensor"]


@cache
def _seen_from(offset: int) -> Seen:
    """The mask of queries of which the first one stands at key `offset`: one function for each offset."""

    def seen(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return key <= query

    def seen_with_offset(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return key <= query + offset

    return seen_with_offset if offset else seen


@cache
def _causal_blocks(queries: int, keys: int, device: torch.device) -> BlockMask:
    """The causal mask by blocks, with the last query at the last key: whole before the diagonal, cut on it.

    It is built directly, because `create_block_mask` would first build the mask of all queries and keys. In a
    last row that is shorter than a block, every block is cut.
    """
    import torch
    from torch.nn.attention.flex_attention import BlockMask

    rows, blocks, offset = -(-queries // BLOCK), -(-keys // BLOCK), keys - queries
    row = torch.arange(rows, device=device, dtype=torch.int32)
    block = torch.arange(blocks, device=device, dtype=torch.int32)
    whole_counts = (row * BLOCK + offset + 1) // BLOCK
    if queries % BLOCK:
        whole_counts[-1] = 0
    cut_counts = (((row + 1) * BLOCK).clamp_max(queries) + offset + BLOCK - 1) // BLOCK - whole_counts
    cut = (whole_counts[:, None] + block).clamp_max(blocks - 1)
    whole = block[None, :].repeat(rows, 1)
    return BlockMask.from_kv_blocks(
        cut_counts[None, None],
        cut[None, None],
        whole_counts[None, None],
        whole[None, None],
        BLOCK_SIZE=BLOCK,
        mask_mod=_seen_from(offset),
        seq_lengths=(queries, keys),
    )


def unsupported_reasons(case: Case) -> list[str]:
    """A GPU for which Triton compiles it. On a CPU PyTorch has its forward only."""
    if case.device != "cuda":
        return _reasons.declared(case, SUPPORTS)
    reasons = _reasons.declared(case, SUPPORTS)
    # In float32 a backward tile with 256 numbers a row does not fit in the GPU's shared memory.
    if case.dtype == "float32" and case.head_dim > 128:
        reasons.append(
            f"takes head dims up to 128 in float32, not {case.head_dim}: use --set train.dtype=bfloat16, "
            "or change model.heads"
        )
    return reasons + _reasons.package(
        "triton", "jit", "install PyTorch for CUDA or ROCm on Linux, which brings it"
    )


SUPPORTS = Supports(
    offset=True,
    layout="BHTD",
    smallest_head_dim=16,
    largest_head_dim=256,
    capability=((8, 0), None),
    amd=("gfx90a", "gfx942"),
    versions="triton, with torch",
)

backend = Backend(
    summary="PyTorch flex_attention: a Triton kernel compiled for the mask",
    references=("ansel2024pytorch", "dong2024flex"),
    unsupported_reasons=unsupported_reasons,
    attend=attend,
    launches=Launches(
        cuda=Kernels(forward=r"^triton_.*flex_attention", backward=r"^triton_.*flex_attention_backward")
    ),
    supports=SUPPORTS,
    modules=("triton",),
    compiles=True,
    graph_break=lambda: "flex_attention is compiled by itself: it either runs its own kernel or fails",
)
