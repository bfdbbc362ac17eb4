"""FlashAttention as it was first published: keys outside, queries inside, and its state in device memory.

Dao et al. 2022, "FlashAttention" (arXiv:2205.14135), algorithm 1 and, of its appendix, algorithm 4. A program has one
head of one sample. It takes a tile of keys and values at a time and goes through all tiles of queries with it, and for
each of these reads O and its statistics, the sum l and the maximum m, from device memory, and writes them back. What
the second version changed is left as it was: few programs where there are few heads, O is divided by the sum after
every tile, and its traffic grows with the number of tiles of keys. The backward goes the same way, and adds to dQ.

As in the authors' own code, O and dQ are float32 on the way and rounded once, when the last keys have been seen. Beyond
the paper: groups of heads read their keys where these are, and dK and dV of a group are summed afterwards, in float32.

Shapes: B batch, T queries, U keys, H query heads, K key/value heads, D head dim. Query t stands at key t + offset, and
under a causal mask sees the keys up to that one; a query that sees no key has an output of zero. Exponentials have base
2, with log2(e) folded into the scale.
"""

# ruff: noqa: ARG001 - a shape function has the signature of its operator.

# No `from __future__ import annotations`: torch.library reads the annotations to infer the schemas.
from collections.abc import Sequence
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.errors import TritonError

from model.attention.kernels.operators import differentiate, operator, shapes_of_gradients
from model.attention.kernels.portable.tiles import INTERPRETED, Tile, refusal, sized

LOG2_E = 1.4426950408889634
# Lengths change from call to call: Triton would compile anew for those that are 1 or a multiple of 16.
VARIABLE = ["length_q", "length_k", "offset", "heads"]

# By pass and columns of a tile; fewer columns take those of 64. Chosen from what the compiler says of each: they fit into
# the shared memory of every GPU of their kind, and spill few registers. Their speed was not compared.
Tiles = dict[tuple[str, int], Tile]
HOPPER: Tiles = {  # and data-centre Blackwell, in 16 bits: 227 KiB of shared memory
    ("forward", 64): Tile(128, 256, 8, 2),  # spills some 400 bytes, and is 1.4 times as fast as 128 x 128
    ("forward", 128): Tile(64, 128, 8, 2),
    ("backward", 64): Tile(64, 128, 8, 3),
    ("backward", 128): Tile(64, 64, 8, 2),
}
AMPERE: Tiles = {  # with Ada, and Blackwell without data centre, in 16 bits: 99 KiB
    ("forward", 64): Tile(128, 64, 8, 2),
    ("forward", 128): Tile(64, 64, 8, 1),
    ("backward", 64): Tile(32, 64, 4, 1),
    ("backward", 128): Tile(32, 64, 8, 1),
}
FLOAT32: Tiles = {  # without tensor cores, on every GPU: 64 KiB
    ("forward", 64): Tile(32, 64, 8, 1),
    ("forward", 128): Tile(32, 32, 8, 1),
    ("backward", 64): Tile(32, 32, 8, 1),
    ("backward", 128): Tile(32, 16, 8, 1),
}
TURING = FLOAT32 | {
    ("backward", 128): Tile(16, 16, 8, 1)
}  # float16 without tensor cores, which spills in 32 rows


@triton.jit
def _first_row(first_key, offset, CAUSAL: tl.constexpr, ROWS: tl.constexpr):
    """Where the first tile begins of which a query sees the key. All begin with the first tile of keys, whatever they see."""
    if CAUSAL:
        return tl.where(first_key > 0, tl.maximum(first_key - offset, 0) // ROWS * ROWS, 0)
    return 0


@triton.jit
def _is_last(first_key, last_row, length_k, offset, CAUSAL: tl.constexpr, KEYS: tl.constexpr):
    """Whether no query of a tile sees a key of a later tile of keys."""
    end = length_k
    if CAUSAL:
        end = tl.minimum(end, last_row + offset + 1)
    return first_key + KEYS >= end


@triton.jit
def _visible(row, key, length_k, offset, CAUSAL: tl.constexpr):
    """Which queries see which keys; one of `row` and `key` is a column."""
    seen = key < length_k
    if CAUSAL:
        seen = seen & (key <= row + offset)
    return seen


@triton.jit(do_not_specialize=VARIABLE)
def _flash1_forward(
    Q, K, V, O, WORK, SUM, MAX,
    stride_qb, stride_qt, stride_qh, stride_qd,
    stride_kb, stride_kt, stride_kh, stride_kd,
    stride_vb, stride_vt, stride_vh, stride_vd,
    length_q, length_k, offset, heads, scale_log2,
    CAUSAL: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, EVEN: tl.constexpr,
    WIDE: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """O, l and m of one head. WORK is O in float32, and may be O."""
    plane = tl.program_id(0).to(tl.int64)
    b, h = plane // heads, plane % heads
    near_row, near_key, dim = tl.arange(0, ROWS), tl.arange(0, KEYS), tl.arange(0, WIDE)[None, :]
    wide_row, wide_key = near_row.to(tl.int64)[:, None], near_key.to(tl.int64)[:, None]
    q_at = Q + b * stride_qb + h * stride_qh + wide_row * stride_qt + dim * stride_qd
    k_at = K + b * stride_kb + h // GROUP * stride_kh + wide_key * stride_kt + dim * stride_kd
    v_at = V + b * stride_vb + h // GROUP * stride_vh + wide_key * stride_vt + dim * stride_vd
    own = (b * length_q * heads + h) * D + wide_row * heads * D + dim
    SUM += plane * length_q
    MAX += plane * length_q

    for first_key in range(0, length_k, KEYS):
        key, far_key = first_key + near_key, tl.cast(first_key, tl.int64)
        k = tl.load(k_at + far_key * stride_kt, mask=(key < length_k)[:, None] & (dim < D), other=0.0)
        v = tl.load(v_at + far_key * stride_vt, mask=(key < length_k)[:, None] & (dim < D), other=0.0)
        for start in range(_first_row(first_key, offset, CAUSAL, ROWS), length_q, ROWS):
            row, far_row = start + near_row, tl.cast(start, tl.int64)
            inside = (row < length_q)[:, None] & (dim < D)
            begun = first_key > 0  # before, there is nothing to read: O and l are 0, m is minus infinity
            old_max = tl.load(MAX + row, mask=(row < length_q) & begun, other=float("-inf"))
            old_sum = tl.load(SUM + row, mask=(row < length_q) & begun, other=0.0)
            o_at = own + far_row * heads * D
            o = tl.load(WORK + o_at, mask=inside & begun, other=0.0)

            q = tl.load(q_at + far_row * stride_qt, mask=inside, other=0.0)
            s = tl.dot(q, tl.trans(k), input_precision="ieee")
            if CAUSAL or not EVEN:
                s = tl.where(_visible(row[:, None], key[None, :], length_k, offset, CAUSAL), s, float("-inf"))
            tile_max = tl.max(s, 1) * scale_log2
            shift = tl.where(tile_max == float("-inf"), 0.0, tile_max)  # a query may see no key of this tile
            # Fused: where scores are very large, the product must not be rounded before the maximum is taken off it.
            p = tl.exp2(tl.fma(s, scale_log2, -shift[:, None]))
            new_max = tl.maximum(old_max, tile_max)
            base = tl.where(new_max == float("-inf"), 0.0, new_max)
            kept, weight = old_sum * tl.exp2(old_max - base), tl.exp2(tile_max - base)
            new_sum = kept + weight * tl.sum(p, 1)
            divisor = tl.where(new_sum == 0, 1.0, new_sum)
            added = tl.dot(p.to(v.dtype), v, input_precision="ieee")
            o = o * (kept / divisor)[:, None] + added * (weight / divisor)[:, None]

            tl.store(MAX + row, new_max, mask=row < length_q)
            tl.store(SUM + row, new_sum, mask=row < length_q)
            if WORK.dtype.element_ty == O.dtype.element_ty:
                tl.store(O + o_at, o.to(O.dtype.element_ty), mask=inside)
            else:
                last = _is_last(first_key, start + ROWS - 1, length_k, offset, CAUSAL, KEYS)
                tl.store(WORK + o_at, o, mask=inside & (not last))
                tl.store(O + o_at, o.to(O.dtype.element_ty), mask=inside & last)
        # Other threads read what these have written: Triton orders the two only where it is told to.
        tl.debug_barrier()


@triton.jit(do_not_specialize=VARIABLE)
def _flash1_backward(
    Q, K, V, O, SUM, MAX, DO, DQ, WORK, DK, DV,
    stride_qb, stride_qt, stride_qh, stride_qd,
    stride_kb, stride_kt, stride_kh, stride_kd,
    stride_vb, stride_vt, stride_vh, stride_vd,
    stride_gb, stride_gt, stride_gh, stride_gd,
    length_q, length_k, offset, heads, scale, scale_log2,
    CAUSAL: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, EVEN: tl.constexpr,
    WIDE: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """dQ, and dK and dV of one query head. WORK is dQ in float32, and may be dQ. Scores are held transposed."""
    plane = tl.program_id(0).to(tl.int64)
    b, h = plane // heads, plane % heads
    near_row, near_key, dim = tl.arange(0, ROWS), tl.arange(0, KEYS), tl.arange(0, WIDE)[None, :]
    wide_row, wide_key = near_row.to(tl.int64)[:, None], near_key.to(tl.int64)[:, None]
    q_at = Q + b * stride_qb + h * stride_qh + wide_row * stride_qt + dim * stride_qd
    do_at = DO + b * stride_gb + h * stride_gh + wide_row * stride_gt + dim * stride_gd
    k_at = K + b * stride_kb + h // GROUP * stride_kh + wide_key * stride_kt + dim * stride_kd
    v_at = V + b * stride_vb + h // GROUP * stride_vh + wide_key * stride_vt + dim * stride_vd
    own = (b * length_q * heads + h) * D + wide_row * heads * D + dim
    SUM += plane * length_q
    MAX += plane * length_q

    for first_key in range(0, length_k, KEYS):
        key, far_key = first_key + near_key, tl.cast(first_key, tl.int64)
        inside_keys = (key < length_k)[:, None] & (dim < D)
        k = tl.load(k_at + far_key * stride_kt, mask=inside_keys, other=0.0)
        v = tl.load(v_at + far_key * stride_vt, mask=inside_keys, other=0.0)
        dk, dv = tl.zeros((KEYS, WIDE), tl.float32), tl.zeros((KEYS, WIDE), tl.float32)
        for start in range(_first_row(first_key, offset, CAUSAL, ROWS), length_q, ROWS):
            row, far_row = start + near_row, tl.cast(start, tl.int64)
            inside = (row < length_q)[:, None] & (dim < D)
            o_at = own + far_row * heads * D
            row_max = tl.load(MAX + row, mask=row < length_q, other=0.0)
            row_sum = tl.load(SUM + row, mask=row < length_q, other=1.0)
            q = tl.load(q_at + far_row * stride_qt, mask=inside, other=0.0)
            do = tl.load(do_at + far_row * stride_gt, mask=inside, other=0.0)
            o = tl.load(O + o_at, mask=inside, other=0.0)
            delta = tl.sum(o.to(tl.float32) * do.to(tl.float32), 1)

            st = tl.dot(k, tl.trans(q), input_precision="ieee")
            pt = tl.exp2(tl.fma(st, scale_log2, -row_max[None, :])) * (1.0 / row_sum)[None, :]
            if CAUSAL or not EVEN:
                pt = tl.where(_visible(row[None, :], key[:, None], length_k, offset, CAUSAL), pt, 0.0)
            dv = tl.dot(pt.to(do.dtype), do, dv, input_precision="ieee")
            dpt = tl.dot(v, tl.trans(do), input_precision="ieee")
            dst = (pt * (dpt - delta[None, :])).to(q.dtype)
            dk = tl.dot(dst, q, dk, input_precision="ieee")
            dq = tl.load(WORK + o_at, mask=inside & (first_key > 0), other=0.0)
            dq += tl.dot(tl.trans(dst), k, input_precision="ieee")

            last = _is_last(first_key, start + ROWS - 1, length_k, offset, CAUSAL, KEYS)
            if WORK.dtype.element_ty == DQ.dtype.element_ty:
                tl.store(DQ + o_at, tl.where(last, dq * scale, dq).to(DQ.dtype.element_ty), mask=inside)
            else:
                tl.store(WORK + o_at, dq, mask=inside & (not last))
                tl.store(DQ + o_at, (dq * scale).to(DQ.dtype.element_ty), mask=inside & last)
        out = ((b * length_k + far_key + wide_key) * heads + h) * D + dim
        tl.store(DK + out, (dk * scale).to(DK.dtype.element_ty), mask=inside_keys)
        tl.store(DV + out, dv.to(DV.dtype.element_ty), mask=inside_keys)
        tl.debug_barrier()  # as in the forward


@cache
def tile_of(which: str, dtype: torch.dtype, columns: int, device: torch.device) -> Tile:
    """The tile of "forward" or "backward"."""
    if device.type != "cuda":
        return INTERPRETED
    return for_gpu(torch.cuda.get_device_capability(device), dtype)[which, max(64, columns)]


def for_gpu(capability: tuple[int, int], dtype: torch.dtype) -> Tiles:
    """All tiles for NVIDIA GPUs of a compute capability, in a precision."""
    if dtype == torch.float32:
        return FLOAT32
    if capability < (8, 0):
        return TURING
    return HOPPER if (9, 0) <= capability < (12, 0) else AMPERE


def check(q_BTHD: Tensor, k_BUKD: Tensor, v_BUKD: Tensor, offset: int, *like_q: Tensor) -> None:
    """Refuse what the kernels would read wrongly, before they are launched.

    Raises:
        ValueError: shapes, precision or devices that the kernels do not take.
    """
    (B, T, H, D), (U, K) = q_BTHD.shape, k_BUKD.shape[1:3]
    shapes = k_BUKD.shape == v_BUKD.shape == (B, U, K, D) and all(x.shape == q_BTHD.shape for x in like_q)
    tensors = (q_BTHD, k_BUKD, v_BUKD, *like_q)
    same = all(x.dtype == q_BTHD.dtype and x.device == q_BTHD.device for x in tensors)
    taken = 16 <= D <= 128 and D % 8 == 0 and q_BTHD.dtype in (torch.bfloat16, torch.float16, torch.float32)
    counted = abs(offset) + T < 2**31 - 256 and U < 2**31 - 256  # positions, in 32 bits
    if not (shapes and same and taken and counted and min(B, T, U, H, K) > 0 and H % K == 0):
        given = ", ".join(f"{tuple(x.shape)} {x.dtype} on {x.device}" for x in tensors)
        raise ValueError(
            "the flash1 kernel takes q (B, T, heads, D) and k, v (B, U, key heads, D) of one device and one of the "
            "precisions bfloat16, float16 and float32, head dim a multiple of 8 from 16 to 128, heads a multiple of "
            f"key heads, nothing empty; got {given}, offset {offset}"
        )


def attend(
    q_BTHD: Tensor, k_BUKD: Tensor, v_BUKD: Tensor, causal: bool, size: tuple[int, int] | None = None
) -> Tensor:
    """softmax(Q K^T / sqrt(D)) V, of tensors with any strides; under the mask the last query stands at the last key.

    Args:
        size: queries and keys of a tile; by default each pass has its own.
    """
    offset = k_BUKD.shape[1] - q_BTHD.shape[1]
    o_BTHD: Tensor = flash1_attention(q_BTHD, k_BUKD, v_BUKD, causal, offset, size)[0]
    return o_BTHD


def _shapes(
    q_BTHD: Tensor,
    k_BUKD: Tensor,
    v_BUKD: Tensor,
    causal: bool,
    offset: int,
    size: Sequence[int] | None = None,
) -> tuple[Tensor, Tensor]:
    check(q_BTHD, k_BUKD, v_BUKD, offset)
    B, T, H, _ = q_BTHD.shape
    # The output is contiguous, whatever the strides of the inputs.
    return q_BTHD.new_empty(q_BTHD.shape), q_BTHD.new_empty((2, B, H, T), dtype=torch.float32)


@operator(_shapes)
def flash1_attention(
    q_BTHD: Tensor,
    k_BUKD: Tensor,
    v_BUKD: Tensor,
    causal: bool,
    offset: int,
    size: Sequence[int] | None = None,
) -> tuple[Tensor, Tensor]:
    """(o_BTHD, stats_2BHT: of each query the sum l and the maximum m, in float32, where m is in units of log2).

    No gradient flows through the second output.
    """
    o_BTHD, stats_2BHT = _shapes(q_BTHD, k_BUKD, v_BUKD, causal, offset)
    (B, T, H, D), (U, K) = q_BTHD.shape, k_BUKD.shape[1:3]
    columns = triton.next_power_of_2(D)
    tile = sized(tile_of("forward", q_BTHD.dtype, columns, q_BTHD.device), size)
    try:
        with torch.cuda.device_of(q_BTHD):  # Triton launches on the current device
            _flash1_forward[(B * H,)](
                q_BTHD, k_BUKD, v_BUKD, o_BTHD, _on_the_way(o_BTHD, U, tile), *stats_2BHT,
                *q_BTHD.stride(), *k_BUKD.stride(), *v_BUKD.stride(), T, U, offset, H, D**-0.5 * LOG2_E,
                causal, H // K, D, U % tile.keys == 0, columns, tile.rows, tile.keys,
                num_warps=tile.warps, num_stages=tile.stages,
            )  # fmt: skip
    except TritonError as error:
        raise refusal(error, tile, size) from error
    return o_BTHD, stats_2BHT


@operator(shapes_of_gradients)
def flash1_attention_backward(
    do_BTHD: Tensor, q_BTHD: Tensor, k_BUKD: Tensor, v_BUKD: Tensor, o_BTHD: Tensor, stats_2BHT: Tensor,
    causal: bool, offset: int, size: Sequence[int] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients (dq_BTHD, dk_BUKD, dv_BUKD), the same bits each time."""
    check(q_BTHD, k_BUKD, v_BUKD, offset, do_BTHD, o_BTHD)
    (B, T, H, D), (U, K) = q_BTHD.shape, k_BUKD.shape[1:3]
    columns = triton.next_power_of_2(D)
    tile = sized(tile_of("backward", q_BTHD.dtype, columns, q_BTHD.device), size)
    dq_BTHD = q_BTHD.new_empty(q_BTHD.shape)
    # Of each query head, which are summed over the group.
    dkv_2BUHD = k_BUKD.new_empty((2, B, U, H, D), dtype=k_BUKD.dtype if H == K else torch.float32)
    try:
        with torch.cuda.device_of(q_BTHD):
            _flash1_backward[(B * H,)](
                q_BTHD, k_BUKD, v_BUKD, o_BTHD, *stats_2BHT, do_BTHD, dq_BTHD, _on_the_way(dq_BTHD, U, tile),
                *dkv_2BUHD, *q_BTHD.stride(), *k_BUKD.stride(), *v_BUKD.stride(), *do_BTHD.stride(),
                T, U, offset, H, D**-0.5, D**-0.5 * LOG2_E,
                causal, H // K, D, U % tile.keys == 0, columns, tile.rows, tile.keys,
                num_warps=tile.warps, num_stages=tile.stages,
            )  # fmt: skip
    except TritonError as error:
        raise refusal(error, tile, size) from error
    if H == K:
        return dq_BTHD, *dkv_2BUHD
    dk_BUKD, dv_BUKD = (x.view(B, U, K, H // K, D).sum(3).to(k_BUKD.dtype) for x in dkv_2BUHD)
    return dq_BTHD, dk_BUKD, dv_BUKD


def _on_the_way(result: Tensor, keys: int, tile: Tile) -> Tensor:
    """A result in float32, where the kernel keeps it between its tiles of keys; itself, if it is that or there is one tile."""
    if keys <= tile.keys or result.dtype == torch.float32:
        return result
    return torch.empty_like(result, dtype=torch.float32)


differentiate(flash1_attention, flash1_attention_backward)
