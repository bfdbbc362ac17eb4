"""The backward: one kernel for dQ, then one for dK and dV (FA2 algorithm 2 in two).

Each computes the probabilities again. That costs seven matrix products instead of five, but every sum stays in the
registers of one program: no atomic additions, hence the same bits each time, and no dQ in float32 in memory.
"""

# ruff: noqa: SIM102 - of two nested conditions Triton decides the outer one when it compiles.

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.errors import TritonError

from model.attention.kernels.portable import tiles
from model.attention.kernels.portable.checks import check, check_dropout
from model.attention.kernels.portable.forward import (
    LOG2_E,
    VARIABLE,
    addresses,
    keys_seen,
    left,
    load_tile,
    visible,
)


@triton.jit(do_not_specialize=VARIABLE)
def _portable_backward_dq(
    Q, K, V, O, LSE, DO, DQ, DELTA,
    stride_qb, stride_qt, stride_qh, stride_qd,
    stride_kb, stride_kt, stride_kh, stride_kd,
    stride_vb, stride_vt, stride_vh, stride_vd,
    stride_gb, stride_gt, stride_gh, stride_gd,
    length_q, length_k, offset, batch, kv_heads, scale, scale_log2,
    CAUSAL: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, EVEN: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, DROP: tl.constexpr = 0, SEED=None,
):  # fmt: skip
    """dQ of a tile of rows, and on the way their delta = rowsum(dO * O), which the other kernel needs too."""
    rows, heads = length_q * GROUP, kv_heads * GROUP
    tile = tl.cdiv(rows, ROWS) - 1 - tl.program_id(0) // (batch * kv_heads)
    plane = tl.program_id(0) % (batch * kv_heads)
    b, h = (plane // kv_heads).to(tl.int64), (plane % kv_heads).to(tl.int64)
    row = tile * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    dim = tl.arange(0, D)[None, :]
    # Of O and dQ.
    own = addresses((b * length_q * heads + h * GROUP) * D, row, heads * D, D, GROUP)[:, None] + dim
    do_at = addresses(DO + b * stride_gb + h * GROUP * stride_gh, row, stride_gt, stride_gh, GROUP)
    do = tl.load(do_at[:, None] + dim * stride_gd, mask=inside[:, None], other=0.0)
    o = tl.load(O + own, mask=inside[:, None], other=0.0)
    delta = tl.sum(o.to(tl.float32) * do.to(tl.float32), 1)
    here = plane.to(tl.int64) * rows + row
    tl.store(DELTA + here, delta, mask=inside)
    row_max = tl.load(LSE + here, mask=inside, other=0.0)
    log_sum = tl.load(LSE + batch.to(tl.int64) * kv_heads * rows + here, mask=inside, other=0.0)
    q_at = addresses(Q + b * stride_qb + h * GROUP * stride_qh, row, stride_qt, stride_qh, GROUP)
    q = tl.load(q_at[:, None] + dim * stride_qd, mask=inside[:, None], other=0.0)
    near = tl.arange(0, KEYS)
    k_at = K + b * stride_kb + h * stride_kh + near[:, None] * stride_kt + dim * stride_kd
    v_at = V + b * stride_vb + h * stride_vh + near[:, None] * stride_vt + dim * stride_vd

    dq = tl.zeros((ROWS, D), tl.float32)
    full, end = keys_seen(tile * ROWS, length_q, length_k, offset, CAUSAL, GROUP, ROWS, KEYS)
    for start in range(0, end, KEYS):
        far = tl.cast(start, tl.int64)
        k = load_tile(k_at + far * stride_kt, start + near, length_k, EVEN)
        v = load_tile(v_at + far * stride_vt, start + near, length_k, EVEN)
        s = tl.dot(q, tl.trans(k), input_precision="ieee")
        dp = tl.dot(do, tl.trans(v), input_precision="ieee")
        p = tl.exp2(tl.fma(s, scale_log2, -row_max[:, None]) - log_sum[:, None])
        if CAUSAL or not EVEN:
            if start >= full:
                p = tl.where(visible(row, start + near, length_k, offset, CAUSAL, GROUP), p, 0.0)
        if DROP:  # O has used the weights that are left, and so has delta
            stays = left(tl.load(SEED), row, start, b * heads + h * GROUP, GROUP, KEYS, DROP)
            dp = tl.where(stays, dp * (16 / (16 - DROP)), 0.0)
        ds = p * (dp - delta[:, None])
        dq = tl.dot(ds.to(k.dtype), k, dq, input_precision="ieee")
    tl.store(DQ + own, (dq * scale).to(DQ.dtype.element_ty), mask=inside[:, None])


@triton.jit
def _rows_that_see(first_key, offset, CAUSAL: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr,
                   KEYS: tl.constexpr):  # fmt: skip
    """(first, full), in tiles: no row before `first` sees a key of the tile; from `full` on all rows see all of them."""
    first, full = 0, 0
    if CAUSAL:
        first = tl.maximum(first_key - offset, 0) * GROUP // ROWS
        full = tl.cdiv(tl.maximum(first_key + KEYS - 1 - offset, 0) * GROUP, ROWS)
    return first, full


@triton.jit
def _tile_addresses(base, start, stride_t, stride_h, GROUP: tl.constexpr, ROWS: tl.constexpr):
    """Where each row of a tile begins. Tiles of whole queries have one pattern, which is computed before the loop."""
    row = tl.arange(0, ROWS)
    if ROWS % GROUP == 0:
        return addresses(base, row, stride_t, stride_h, GROUP) + tl.cast(start // GROUP, tl.int64) * stride_t
    return addresses(base, start + row, stride_t, stride_h, GROUP)


@triton.jit
def _load_numbers(at, row, rows, EVEN: tl.constexpr):
    """One number a row; zeros beyond the last."""
    if EVEN:
        return tl.load(at + row)
    return tl.load(at + row, mask=row < rows, other=0.0)


@triton.jit(do_not_specialize=VARIABLE)
def _portable_backward_dkdv(
    Q, K, V, LSE, DO, DELTA, DK, DV,
    stride_qb, stride_qt, stride_qh, stride_qd,
    stride_kb, stride_kt, stride_kh, stride_kd,
    stride_vb, stride_vt, stride_vh, stride_vd,
    stride_gb, stride_gt, stride_gh, stride_gd,
    length_q, length_k, offset, batch, kv_heads, scale, scale_log2,
    CAUSAL: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, EVEN: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, DROP: tl.constexpr = 0, SEED=None,
):  # fmt: skip
    """dK and dV of a tile of keys, summed over all rows of the group. Early keys are seen by the most: they go first.

    Scores are held transposed (keys are rows), so that P^T and dS^T are register operands of dV and dK. Rows beyond the
    last add nothing, as their Q and dO are zero; keys beyond the last are not stored.
    """
    rows, planes = length_q * GROUP, batch * kv_heads
    plane, first_key = tl.program_id(0) % planes, tl.program_id(0) // planes * KEYS
    b, h = (plane // kv_heads).to(tl.int64), (plane % kv_heads).to(tl.int64)
    key = first_key + tl.arange(0, KEYS)
    inside = (key < length_k)[:, None]
    dim = tl.arange(0, D)[None, :]
    wide = key.to(tl.int64)[:, None]
    k_at = K + b * stride_kb + h * stride_kh + wide * stride_kt + dim * stride_kd
    v_at = V + b * stride_vb + h * stride_vh + wide * stride_vt + dim * stride_vd
    k = tl.load(k_at, mask=inside, other=0.0)
    v = tl.load(v_at, mask=inside, other=0.0)
    Q += b * stride_qb + h * GROUP * stride_qh
    DO += b * stride_gb + h * GROUP * stride_gh
    LSE += plane.to(tl.int64) * rows
    LOG_SUM = LSE + planes.to(tl.int64) * rows
    DELTA += plane.to(tl.int64) * rows

    dk, dv = tl.zeros((KEYS, D), tl.float32), tl.zeros((KEYS, D), tl.float32)
    first, full = _rows_that_see(first_key, offset, CAUSAL, GROUP, ROWS, KEYS)
    for tile in range(first, tl.cdiv(rows, ROWS)):
        start = tile * ROWS
        row = start + tl.arange(0, ROWS)
        q_at = _tile_addresses(Q, start, stride_qt, stride_qh, GROUP, ROWS)[:, None]
        do_at = _tile_addresses(DO, start, stride_gt, stride_gh, GROUP, ROWS)[:, None]
        q = load_tile(q_at + dim * stride_qd, row, rows, EVEN)
        do = load_tile(do_at + dim * stride_gd, row, rows, EVEN)
        row_max = _load_numbers(LSE, row, rows, EVEN)
        log_sum = _load_numbers(LOG_SUM, row, rows, EVEN)
        delta = _load_numbers(DELTA, row, rows, EVEN)
        st = tl.dot(k, tl.trans(q), input_precision="ieee")
        pt = tl.exp2(tl.fma(st, scale_log2, -row_max[None, :]) - log_sum[None, :])
        if CAUSAL:
            # At head dim 256 tiles are small, and a mask costs less than a branch: for it ptxas serializes (C7515).
            if D > 128 or tile < full:
                pt = tl.where(key[:, None] <= (row // GROUP + offset)[None, :], pt, 0.0)
        kept = pt
        if DROP:
            stays = tl.trans(
                left(tl.load(SEED), row, first_key, (b * kv_heads + h) * GROUP, GROUP, KEYS, DROP)
            )
            kept = tl.where(stays, pt, 0.0)
        dv = tl.dot(kept.to(do.dtype), do, dv, input_precision="ieee")
        dpt = tl.dot(v, tl.trans(do), input_precision="ieee")
        if DROP:
            dpt = tl.where(stays, dpt * (16 / (16 - DROP)), 0.0)
        dst = pt * (dpt - delta[None, :])
        dk = tl.dot(dst.to(q.dtype), q, dk, input_precision="ieee")
    if DROP:
        dv *= 16 / (16 - DROP)
    out = (b * length_k + wide) * kv_heads * D + h * D + dim
    tl.store(DK + out, (dk * scale).to(DK.dtype.element_ty), mask=inside)
    tl.store(DV + out, dv.to(DV.dtype.element_ty), mask=inside)


def backward(
    do_BTHD: Tensor, q_BTHD: Tensor, k_BUKD: Tensor, v_BUKD: Tensor, o_BTHD: Tensor, lse_2BKR: Tensor,
    causal: bool, offset: int, size: Sequence[int] | None = None, drop: int = 0, seed: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients (dq_BTHD, dk_BUKD, dv_BUKD), contiguous, the same bits each time.

    Args:
        do_BTHD: with any strides, as q_BTHD, k_BUKD and v_BUKD have.
        o_BTHD, lse_2BKR: what `forward` returned.
        size: rows and keys of the tiles; by default each kernel's own.
        drop, seed: what `forward` was given.

    Raises:
        ValueError: shapes, precision or devices that the kernels do not take.
        Unsupported: the GPU has no room for a tile.
    """
    check(q_BTHD, k_BUKD, v_BUKD, offset, do_BTHD, o_BTHD)
    check_dropout(drop, seed, q_BTHD.device)
    (B, T, H, D), (U, K) = q_BTHD.shape, k_BUKD.shape[1:3]
    rows = T * (H // K)
    strides = (*q_BTHD.stride(), *k_BUKD.stride(), *v_BUKD.stride(), *do_BTHD.stride())
    numbers = (T, U, offset, B, K, D**-0.5, D**-0.5 * LOG2_E, causal, H // K, D)
    dq_BTHD, dk_BUKD, dv_BUKD = (x.new_empty(x.shape) for x in (q_BTHD, k_BUKD, v_BUKD))
    delta_BKR = torch.empty_like(lse_2BKR[0])
    try:
        tile = tiles.sized(tiles.chosen("dq", D, q_BTHD.dtype, q_BTHD.device), size)
        _portable_backward_dq[(triton.cdiv(rows, tile.rows) * B * K,)](
            q_BTHD, k_BUKD, v_BUKD, o_BTHD, lse_2BKR, do_BTHD, dq_BTHD, delta_BKR, *strides, *numbers,
            U % tile.keys == 0, tile.rows, tile.keys, drop, seed, num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
        tile = tiles.sized(tiles.chosen("dkdv", D, q_BTHD.dtype, q_BTHD.device), size)
        _portable_backward_dkdv[(triton.cdiv(U, tile.keys) * B * K,)](
            q_BTHD, k_BUKD, v_BUKD, lse_2BKR, do_BTHD, delta_BKR, dk_BUKD, dv_BUKD, *strides, *numbers,
            rows % tile.rows == 0, tile.rows, tile.keys, drop, seed, num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip
    except TritonError as error:
        raise tiles.refusal(error, tile, size) from error
    return dq_BTHD, dk_BUKD, dv_BUKD
