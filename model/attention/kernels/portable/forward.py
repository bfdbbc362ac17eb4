"""The forward: a program takes one tile of rows through all the keys that they may see (FA2 algorithm 1)."""

# ruff: noqa: SIM102 - of two nested conditions Triton decides the outer one when it compiles.

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.errors import TritonError

from model.attention.kernels.portable import tiles
from model.attention.kernels.portable.checks import check, check_dropout

LOG2_E = 1.4426950408889634
# Lengths change from call to call: Triton would compile anew for those that are 1 or a multiple of 16.
VARIABLE = ["length_q", "length_k", "offset", "batch", "kv_heads"]


@triton.jit
def addresses(base, row, stride_t, stride_h, GROUP: tl.constexpr):
    """Where each packed row begins, in 64 bits: a tensor may have more than 2^31 elements."""
    return base + (row // GROUP).to(tl.int64) * stride_t + (row % GROUP).to(tl.int64) * stride_h


@triton.jit
def keys_seen(first_row, length_q, length_k, offset, CAUSAL: tl.constexpr, GROUP: tl.constexpr,
              ROWS: tl.constexpr, KEYS: tl.constexpr):  # fmt: skip
    """(full, end): all rows of the tile see all keys before `full`, which ends a tile; none sees a key from `end` on."""
    full, end = length_k, length_k
    if CAUSAL:
        last_query = tl.minimum((first_row + ROWS - 1) // GROUP, length_q - 1)
        full = tl.minimum(full, tl.maximum(first_row // GROUP + offset + 1, 0))
        end = tl.minimum(end, tl.maximum(last_query + offset + 1, 0))
    return full // KEYS * KEYS, end


@triton.jit
def visible(row, key, length_k, offset, CAUSAL: tl.constexpr, GROUP: tl.constexpr):
    """Which rows see which keys."""
    seen = (key < length_k)[None, :]
    if CAUSAL:
        seen = seen & (key[None, :] <= (row // GROUP + offset)[:, None])
    return seen


@triton.jit
def load_tile(at, here, length, EVEN: tl.constexpr):
    """A tile's keys or rows; zeros beyond the last, where the length is no multiple of the tile."""
    if EVEN:
        return tl.load(at)
    return tl.load(at, mask=(here < length)[:, None], other=0.0)


@triton.jit
def left(seed, row, start, first_head, GROUP: tl.constexpr, KEYS: tl.constexpr, DROP: tl.constexpr):
    """Which weights are left of a tile of rows and the keys from `start` on: those whose four bits are DROP or more."""
    eight = start // 8 + tl.arange(0, KEYS // 8)
    head = (first_head + row % GROUP).to(tl.int32)
    word, _, _, _ = tl.philox(seed, eight[None, :], (row // GROUP)[:, None], head[:, None], 0, 10)
    bits = (word[:, :, None] >> (4 * tl.arange(0, 8))[None, None, :]) & 15
    return tl.reshape(bits, (row.shape[0], KEYS)) >= DROP


@triton.jit(do_not_specialize=[*VARIABLE, "span"])
def _portable_forward(
    Q, K, V, O, LSE,
    stride_qb, stride_qt, stride_qh, stride_qd,
    stride_kb, stride_kt, stride_kh, stride_kd,
    stride_vb, stride_vt, stride_vh, stride_vd,
    length_q, length_k, offset, batch, kv_heads, span, scale_log2,
    CAUSAL: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, EVEN: tl.constexpr,
    SPLIT: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, DROP: tl.constexpr = 0, SEED=None,
):  # fmt: skip
    """O (P, B, T, H, D) and LSE (P, 2, B, K, R), contiguous, of P parts of the keys, each of `span` keys. DROP: of 16 weights, on average."""
    rows, heads = length_q * GROUP, kv_heads * GROUP
    # Late rows see the most keys: they go first, so that no long program is left alone at the end.
    tile = tl.cdiv(rows, ROWS) - 1 - tl.program_id(0) // (batch * kv_heads)
    plane = tl.program_id(0) % (batch * kv_heads)  # of one key head
    b, h = (plane // kv_heads).to(tl.int64), (plane % kv_heads).to(tl.int64)
    row = tile * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    dim = tl.arange(0, D)[None, :]
    q_at = addresses(Q + b * stride_qb + h * GROUP * stride_qh, row, stride_qt, stride_qh, GROUP)
    q = tl.load(q_at[:, None] + dim * stride_qd, mask=inside[:, None], other=0.0)
    near = tl.arange(0, KEYS)
    k_at = K + b * stride_kb + h * stride_kh + near[:, None] * stride_kt + dim * stride_kd
    v_at = V + b * stride_vb + h * stride_vh + near[:, None] * stride_vt + dim * stride_vd

    row_max = tl.full((ROWS,), float("-inf"), tl.float32)
    row_sum = tl.zeros((ROWS,), tl.float32)
    acc = tl.zeros((ROWS, D), tl.float32)
    full, end = keys_seen(tile * ROWS, length_q, length_k, offset, CAUSAL, GROUP, ROWS, KEYS)
    first, planes = 0, batch.to(tl.int64) * kv_heads
    if SPLIT:  # apart, as it takes registers
        first = tl.program_id(1) * span
        end = tl.minimum(end, first + span)
        O += tl.program_id(1).to(tl.int64) * planes * rows * D
        LSE += tl.program_id(1).to(tl.int64) * planes * rows * 2
    # One loop, in which tiles without a mask branch around it: of two loops ptxas serializes the wgmma (C7515).
    for start in range(first, end, KEYS):
        far = tl.cast(start, tl.int64)
        k = load_tile(k_at + far * stride_kt, start + near, length_k, EVEN)
        s = tl.dot(q, tl.trans(k), input_precision="ieee")
        if CAUSAL or not EVEN:
            if start >= full:
                s = tl.where(visible(row, start + near, length_k, offset, CAUSAL, GROUP), s, float("-inf"))
        new_max = tl.maximum(row_max, tl.max(s, 1) * scale_log2)
        shift = tl.where(new_max == float("-inf"), 0.0, new_max)  # of a row that sees no key yet
        # Fused: where scores are very large, the product must not be rounded before the maximum is taken off it.
        p = tl.exp2(tl.fma(s, scale_log2, -shift[:, None]))
        shrink = tl.exp2(row_max - shift)
        row_sum = row_sum * shrink + tl.sum(p, 1)
        row_max = new_max
        v = load_tile(v_at + far * stride_vt, start + near, length_k, EVEN)
        if DROP:  # of the weights, not of the sum that they are divided by
            p = tl.where(left(tl.load(SEED), row, start, b * heads + h * GROUP, GROUP, KEYS, DROP), p, 0.0)
        acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None], input_precision="ieee")

    if DROP:
        acc *= 16 / (16 - DROP)
    O += (b * length_q * heads + h * GROUP) * D
    LSE += plane.to(tl.int64) * rows
    _store_rows(acc, row_max, row_sum, O, LSE, planes * rows, row, rows, heads, GROUP, D)


@triton.jit
def _store_rows(
    acc, row_max, row_sum, O, LSE, next_lse, row, rows, heads, GROUP: tl.constexpr, D: tl.constexpr
):
    """Divide by the sum. A row without a key has an output of 0, and an LSE of (0, -inf)."""
    sees_none = row_sum == 0
    row_sum = tl.where(sees_none, 1.0, row_sum)
    o_at = addresses(O, row, heads * D, D, GROUP)[:, None] + tl.arange(0, D)[None, :]
    tl.store(o_at, (acc / row_sum[:, None]).to(O.dtype.element_ty), mask=(row < rows)[:, None])
    tl.store(LSE + row, tl.where(sees_none, 0.0, row_max), mask=row < rows)
    log_sum = tl.where(sees_none, float("-inf"), tl.log2(row_sum))
    tl.store(LSE + next_lse + row, log_sum, mask=row < rows)


@triton.jit(do_not_specialize=["length_q", "batch", "kv_heads", "parts"])
def _portable_forward_merge(
    PARTS, LSES, O, LSE, length_q, batch, kv_heads, parts,
    GROUP: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """One output of several: each part's is weighted by its sum of exponentials."""
    rows, heads = length_q * GROUP, kv_heads * GROUP
    planes = batch.to(tl.int64) * kv_heads
    plane, tile = tl.program_id(0) % (batch * kv_heads), tl.program_id(0) // (batch * kv_heads)
    row = tile * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    own = ((plane // kv_heads).to(tl.int64) * length_q * heads + (plane % kv_heads) * GROUP) * D
    o_at = addresses(PARTS + own, row, heads * D, D, GROUP)[:, None] + tl.arange(0, D)[None, :]
    lse_at = LSES + plane.to(tl.int64) * rows + row
    row_max = tl.full((ROWS,), float("-inf"), tl.float32)
    row_sum = tl.zeros((ROWS,), tl.float32)
    acc = tl.zeros((ROWS, D), tl.float32)
    for part in range(parts):
        far = tl.cast(part, tl.int64) * planes * rows
        log_sum = tl.load(lse_at + (2 * far + planes * rows), mask=inside, other=float("-inf"))
        largest = tl.load(lse_at + 2 * far, mask=inside, other=0.0)
        largest = tl.where(log_sum == float("-inf"), float("-inf"), largest)  # it has seen no key
        new_max = tl.maximum(row_max, largest)
        shift = tl.where(new_max == float("-inf"), 0.0, new_max)
        shrink, weight = tl.exp2(row_max - shift), tl.exp2(largest - shift + log_sum)
        o = tl.load(o_at + far * D, mask=inside[:, None], other=0.0)
        acc = acc * shrink[:, None] + o * weight[:, None]
        row_sum = row_sum * shrink + weight
        row_max = new_max
    _store_rows(
        acc,
        row_max,
        row_sum,
        O + own,
        LSE + plane.to(tl.int64) * rows,
        planes * rows,
        row,
        rows,
        heads,
        GROUP,
        D,
    )


def forward(
    q_BTHD: Tensor,
    k_BUKD: Tensor,
    v_BUKD: Tensor,
    causal: bool,
    offset: int,
    size: Sequence[int] | None = None,
    drop: int = 0,
    seed: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention of tensors with any strides.

    Args:
        size: rows and keys of a tile; by default the kernel's own.
        drop: of 16 weights, on average, as `seed` (), int64 says; None without dropout.

    Returns:
        (o_BTHD, contiguous and in the inputs' precision; lse_2BKR in float32: of each row's scaled scores, in units of
        log2, the maximum, and the log2 of the sum of exp2(score - maximum). Apart, because where scores are very large
        the second would be rounded away in the sum of both.)

    Raises:
        ValueError: shapes, precision or devices that the kernel does not take.
        Unsupported: the GPU has no room for the tile.
    """
    check(q_BTHD, k_BUKD, v_BUKD, offset)
    check_dropout(drop, seed, q_BTHD.device)
    (B, T, H, D), (U, K) = q_BTHD.shape, k_BUKD.shape[1:3]
    few = T * (H // K) <= tiles.FEW and not size
    tile = tiles.sized(tiles.chosen("few" if few else "forward", D, q_BTHD.dtype, q_BTHD.device), size)
    programs = triton.cdiv(T * (H // K), tile.rows) * B * K
    parts, span = _parts(U, tile.keys, tiles.busy(q_BTHD.device) // programs if few else 1)
    o_BTHD = q_BTHD.new_empty(q_BTHD.shape)
    lse_2BKR = q_BTHD.new_empty((2, B, K, T * (H // K)), dtype=torch.float32)
    # Of one part, these are the results; of several, they are merged.
    o_PBTHD, lse_P2BKR = o_BTHD[None], lse_2BKR[None]
    if parts > 1:
        o_PBTHD = q_BTHD.new_empty((parts, *q_BTHD.shape), dtype=torch.float32)
        lse_P2BKR = q_BTHD.new_empty((parts, *lse_2BKR.shape), dtype=torch.float32)
    try:
        _portable_forward[programs, parts](
            q_BTHD, k_BUKD, v_BUKD, o_PBTHD, lse_P2BKR, *q_BTHD.stride(), *k_BUKD.stride(), *v_BUKD.stride(),
            T, U, offset, B, K, span, D**-0.5 * LOG2_E, causal, H // K, D, U % tile.keys == 0,
            parts > 1, tile.rows, tile.keys, drop, seed, num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
    except TritonError as error:
        raise tiles.refusal(error, tile, size) from error
    if parts > 1:
        _portable_forward_merge[programs,](
            o_PBTHD, lse_P2BKR, o_BTHD, lse_2BKR, T, B, K, parts, H // K, D, tile.rows, num_warps=4
        )
    return o_BTHD, lse_2BKR


def _parts(keys: int, tile: int, most: int) -> tuple[int, int]:
    """(parts, keys of each): one query leaves most of a GPU idle, unless programs share its keys ("Flash-Decoding",
    Dao et al. 2023, pytorch.org/blog/flash-decoding). A part has four tiles at least, so that merging stays cheap."""
    tiles_of_keys = triton.cdiv(keys, tile)
    parts = max(1, min(most, tiles_of_keys // 4))
    span = triton.cdiv(tiles_of_keys, parts) * tile
    return max(1, triton.cdiv(keys, span)), span
