"""The forward: a program takes one tile of rows through all the keys that they may see (FA2 algorithm 1)."""

# ruff: noqa: SIM102 - of two nested conditions Triton decides the outer one when it compiles.

import torch
import triton
import triton.language as tl
from torch import Tensor

from model.kernels.portable import tiles

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


@triton.jit(do_not_specialize=VARIABLE)
def _portable_forward(
    Q, K, V, O, LSE,
    stride_qb, stride_qt, stride_qh, stride_qd,
    stride_kb, stride_kt, stride_kh, stride_kd,
    stride_vb, stride_vt, stride_vh, stride_vd,
    length_q, length_k, offset, batch, kv_heads, scale_log2,
    CAUSAL: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, EVEN: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """O (B, T, H, D) is contiguous. LSE (2, B, K, R): the maximum of a row's scores, and log2 of the sum beyond it."""
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
    # One loop, in which tiles without a mask branch around it: of two loops ptxas serializes the wgmma (C7515).
    for start in range(0, end, KEYS):
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
        acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None], input_precision="ieee")

    # A row without a key: its output is 0, and its LSE (0, -inf).
    sees_none = row_sum == 0
    row_sum = tl.where(sees_none, 1.0, row_sum)
    o_at = addresses(O + (b * length_q * heads + h * GROUP) * D, row, heads * D, D, GROUP)
    tl.store(o_at[:, None] + dim, (acc / row_sum[:, None]).to(O.dtype.element_ty), mask=inside[:, None])
    lse_at = LSE + plane.to(tl.int64) * rows + row
    tl.store(lse_at, tl.where(sees_none, 0.0, row_max), mask=inside)
    log_sum = tl.where(sees_none, float("-inf"), tl.log2(row_sum))
    tl.store(lse_at + batch.to(tl.int64) * kv_heads * rows, log_sum, mask=inside)


def forward(
    q_BTHD: Tensor, k_BUKD: Tensor, v_BUKD: Tensor, causal: bool, offset: int
) -> tuple[Tensor, Tensor]:
    """Attention of tensors with any strides.

    Returns:
        (o_BTHD, contiguous and in the inputs' precision; lse_2BKR in float32: of each row's scaled scores, in units of
        log2, the maximum, and the log2 of the sum of exp2(score - maximum). Apart, because where scores are very large
        the second would be rounded away in the sum of both.)
    """
    (B, T, H, D), (U, K) = q_BTHD.shape, k_BUKD.shape[1:3]
    tile = tiles.chosen("forward", D, q_BTHD.device)
    o_BTHD = q_BTHD.new_empty(q_BTHD.shape)
    lse_2BKR = q_BTHD.new_empty((2, B, K, T * (H // K)), dtype=torch.float32)
    _portable_forward[(triton.cdiv(T * (H // K), tile.rows) * B * K,)](
        q_BTHD, k_BUKD, v_BUKD, o_BTHD, lse_2BKR, *q_BTHD.stride(), *k_BUKD.stride(), *v_BUKD.stride(),
        T, U, offset, B, K, D**-0.5 * LOG2_E, causal, H // K, D, U % tile.keys == 0,
        tile.rows, tile.keys, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return o_BTHD, lse_2BKR
