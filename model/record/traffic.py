"""Bytes that attention moves between multiprocessors and memory, by formula: what its tiles ask for.

Dao et al. 2022 (arXiv:2205.14135, theorem 2) count the same: what a kernel reads and writes outside of its
own registers and shared memory. The formulas here are made concrete with the tiles of each kernel, and count
whole tensors too. No cache is in them. Of the bytes counted on a GPU, those of the L2 cache are their
counterpart; those of DRAM are fewer where a tile that is read again is still in the L2 cache.

Letters: n tokens, d head dim, e bytes of a number of the tensors; every formula is for one head of one
sample. There is none where query heads share keys, with dropout, or of 8 bits: how those read, draw and
convert differs from backend to backend.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from model.record.case import ELEMENT_BYTES, FP8, Case

Tile = tuple[int, int]  # queries and keys


@dataclass(frozen=True)
class Gpu:
    """What the choice of a tile depends on.

    Attributes:
        capability: NVIDIA's compute capability.
        processors: number of its multiprocessors.
    """

    capability: tuple[int, int]
    processors: int


@dataclass(frozen=True)
class Moved:
    """Bytes of a forward, and of the backward after it; None where no formula is known."""

    forward: int | None = None
    backward: int | None = None


Moves = Callable[[Case, Gpu], Moved]


def unknown(_case: Case, _gpu: Gpu) -> Moved:
    """No formula: what the kernel reads again is known neither from its source nor from this project."""
    return Moved()


def uncovered(case: Case) -> str:
    """What no formula covers of a call, in words; empty where each query head has keys of its own."""
    kinds = {
        "numbers of 8 bits": case.dtype == FP8,
        "dropout": bool(case.dropout),
        "query heads that share keys": case.heads != case.kv_heads,
        "a part of the queries": case.queries is not None,
    }
    return ", ".join(words for words, has in kinds.items() if has)


def score_bytes(case: Case) -> int:
    """Bytes of the matrix of scores of all heads, in the precision of the tensors: B H n^2 e."""
    return case.batch * case.heads * case.sequence_length**2 * ELEMENT_BYTES[case.dtype]


def keys_read(n: int, tile: Tile, causal: bool) -> int:
    """Keys that all tiles of queries read: whole tiles of them, under a mask up to the last query's."""
    rows, keys = tile
    if not causal:
        return -(-n // rows) * n
    return sum(min(n, -(-min(n, first + rows) // keys) * keys) for first in range(0, n, rows))


def rows_read(n: int, tile: Tile, causal: bool) -> int:
    """Queries that all tiles of keys read: whole tiles of them, under a mask from the first key's on."""
    rows, keys = tile
    return sum(n - (first // rows * rows if causal else 0) for first in range(0, n, keys))


def by_scores(case: Case, _gpu: Gpu) -> Moved:
    """PyTorch's plain attention, whose scores go through memory.

    Operators are those of `_scaled_dot_product_attention_math` in torch 2.13. It computes in float32, of f =
    4 bytes, and makes a mask of n^2 numbers once. Of each score, forward: QK^T writes f; adding the mask
    reads 2f and writes f; the softmax reads f and writes f, and `_safe_softmax` then looks for rows without a
    key: it compares (reads f, writes 1), reduces (reads 1) and selects (reads f, writes f); from 16 bits, a
    copy of P is made in e bytes (reads f, writes e); PV reads f. Backward: dV and dP take f each, the
    gradient of the softmax reads 2f and writes f, dQ and dK read f each: 7f.

    Of each number of a row, in both directions: 14f, by products, scaling, and making each of three tensors
    dense; and from 16 bits 4e + 4f more, by conversion. Several samples and heads are assumed: one head alone
    is dense already. Each operand of an operator counts once. The tiles of a matrix product, and a softmax of
    long rows, read theirs more often: of this formula DRAM is the counterpart, and the L2 cache sees more.
    """
    if uncovered(case):
        return Moved()
    n, e, f = case.sequence_length, ELEMENT_BYTES[case.dtype], ELEMENT_BYTES["float32"]
    masked, converts = int(case.causal), int(e < f)
    heads = case.batch * case.heads
    linear = n * case.head_dim * (14 * f + converts * (4 * e + 4 * f))
    # `ones` writes a byte, `tril` reads and writes one, `where` reads one and writes f.
    mask = masked * n**2 * (4 + f)
    score = (7 + 3 * masked) * f + 2 + converts * (f + e)
    return Moved(heads * (n**2 * score + linear) + mask, heads * (n**2 * 7 * f + linear))


def by_keys_outside(case: Case, forward: Tile, backward: Tile) -> Moved:
    """FlashAttention-1: tiles of keys outside, queries inside, the state in memory.

    Dao et al. 2022, algorithms 1 and 4. Forward: K and V are read once, 2end. Each tile of keys reads Q (ed),
    and O, l and m as the tile before left them, and writes them: 4d + 8 bytes each way in float32, but O in e
    bytes where a row has seen its last key. So with R rows over all tiles of keys, of which n are the first
    of their row: R(ed + 8) + (R - n)(4d + 8) + (R - n)4d + ned. That is 2end + (n / B_c)(end + 8nd + 16n) but
    for the first and last tile, and Theta(n^2 d^2 / M) for tiles that fill a memory of M. Backward: K, V, dK
    and dV once, 4end; each tile reads Q, dO, O (3ed), l and m (8), and dQ as it was, and writes it: R(3ed +
    8) + 2(R - n)4d + ned.
    """
    if uncovered(case):
        return Moved()
    n, d, e = case.sequence_length, case.head_dim, ELEMENT_BYTES[case.dtype]
    first, second = (rows_read(n, tile, case.causal) for tile in (forward, backward))
    forth = 2 * e * n * d + first * (e * d + 8) + (first - n) * (8 * d + 8) + e * n * d
    back = 4 * e * n * d + second * (3 * e * d + 8) + (second - n) * 8 * d + e * n * d
    return Moved(case.batch * case.heads * forth, case.batch * case.heads * back)


def by_queries_outside(case: Case, tile: Tile, statistics: int) -> int:
    """A forward whose tiles of queries stay while keys pass (Dao 2023, arXiv:2307.08691, algorithm 1).

    Q is read and O written once, 2end; statistics for the backward are written, so many bytes a row; and each
    tile of queries reads the K and V that it sees: 2ed for each of `keys_read`.
    """
    n, d, e = case.sequence_length, case.head_dim, ELEMENT_BYTES[case.dtype]
    head = 2 * e * n * d + statistics * n + 2 * e * d * keys_read(n, tile, case.causal)
    return case.batch * case.heads * head


def by_adding_dq(case: Case, tile: Tile, before: int, row: int) -> int:
    """A backward whose tiles of keys stay, and add to dQ in float32 (Dao 2023, algorithm 2).

    Before, a pass reads O and dO (2ed a row), writes zeros for dQ (4d) and `before` bytes of statistics. Then
    K and V are read and dK and dV written once, 4end, and each tile of keys reads Q and dO (2ed), `row` bytes
    of statistics and adds to dQ (4d, counted once, as it is sent), for each of `rows_read`. After, dQ is read
    (4d) and rounded (ed).
    """
    n, d, e = case.sequence_length, case.head_dim, ELEMENT_BYTES[case.dtype]
    head = n * (7 * e * d + 8 * d + before) + rows_read(n, tile, case.causal) * (2 * e * d + 4 * d + row)
    return case.batch * case.heads * head


# Queries and keys of a tile, of the forward and of the backward, by head dim, on A100 and H100: from the
# functions run_mha_fwd_hdim* and run_mha_bwd_hdim* of flash_{fwd,bwd}_launch_template.h, flash-attn 2.7,
# which PyTorch copies.
_OF_FLASH_2: dict[int, tuple[Tile, Tile]] = {
    64: ((128, 128), (128, 128)),
    96: ((128, 64), (64, 128)),
    128: ((128, 64), (64, 128)),
}
_WIDE = {(8, 0): ((128, 64), (64, 64)), (9, 0): ((64, 64), (64, 64))}  # head dim 256


def by_flash_2(case: Case, gpu: Gpu) -> Moved:
    """FlashAttention-2 of its package, and PyTorch's copy, on A100 and H100.

    Statistics: the LSE is written, 4 bytes a row. The backward's first pass writes rowsum(dO O), 4; a tile of
    keys reads both, 8. The forward has no formula where blocks are so few that it splits the keys among them
    (`num_splits_heuristic`: below 0.8 blocks of 64 queries for each half of a multiprocessor).
    """
    tiles = _WIDE.get(gpu.capability) if case.head_dim == 256 else _OF_FLASH_2.get(case.head_dim)
    if not tiles or gpu.capability not in _WIDE or uncovered(case):
        return Moved()
    blocks = -(-case.sequence_length // 64) * case.batch * case.heads
    whole = blocks >= 0.8 * 2 * gpu.processors
    return Moved(by_queries_outside(case, tiles[0], 4) if whole else None, by_adding_dq(case, tiles[1], 4, 8))
