"""The two passes over memory around the backward: delta before it, dQ's conversion after it."""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents

# The GPU may launch the backward's kernel while the pass before it runs (programmatic dependent launch): its thread
# blocks take the places that the pass leaves, and wait there. The interpreter has no such thing.
EARLY = tl.constexpr(not triton.knobs.runtime.interpret)


@triton.jit
def _as_rows(dq, ROWS: tl.constexpr, D: tl.constexpr):
    """The inverse of `_backward.in_register_order`."""
    parts = tl.reshape(
        dq, [ROWS // 16, 2, 4, 2, D // 32, 2, 4, 2, 2]
    )  # .. r4, c4, r2 r1, c3, .. c5, r0, c2 c1, r3, c0
    return tl.reshape(tl.permute(parts, (0, 7, 2, 5, 4, 1, 3, 6, 8)), [ROWS, D])


# From here on an LSE takes two float32 numbers. Below, one costs P at most some 1e-4 of it, as the tensor cores add it up.
LARGE = tl.constexpr(128.0)


@triton.jit
def _in_two_numbers(x, y):
    """x + y, and what its rounding loses (Knuth's TwoSum)."""
    total = x + y
    of_y = total - x
    return total, (x - (total - of_y)) + (y - of_y)


# What each part of a number counts. A part of float16 has 11 bits.
WEIGHTS = (2.0**10, 2.0**-1, 2.0**-12)
_LESS = tl.constexpr(
    1 / WEIGHTS[0]
)  # Triton rounds quotients by two units in the last place, products exactly
_FINER = tl.constexpr(WEIGHTS[0] / WEIGHTS[1])


@triton.jit
def _in_parts(x, ROWS: tl.constexpr, DTYPE: tl.constexpr):
    """(ROWS, 16): float32 numbers as sums of three of 16 bits, which count `WEIGHTS`; and zeros.

    So float16 holds up to 6.7e7, in steps of 1.5e-11 at most where numbers are small.
    """
    x *= _LESS
    first = x.to(DTYPE)
    x = (x - first.to(tl.float32)) * _FINER
    second = x.to(DTYPE)
    third = ((x - second.to(tl.float32)) * _FINER).to(DTYPE)
    part = tl.arange(0, 16)[None, :]
    rest = tl.where(part == 2, third[:, None], tl.zeros([ROWS, 16], DTYPE))
    return tl.where(part == 0, first[:, None], tl.where(part == 1, second[:, None], rest))


@triton.jit(do_not_specialize=("T", "T_STATS", "BH", "H", "o_b", "o_t", "o_h", "do_b", "do_t", "do_h"))
def _backward_before_kernel(
    O, DO, PACKED, TERMS, DQ, STATS, T, T_STATS, BH, H, o_b, o_t, o_h, do_b, do_t, do_h, scale_log2,
    D: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """delta = rowsum(dO * O), of which every gradient takes a part (FA2 section 2.3.2); and dQ = 0.

    dQ's sums are whole tiles of ROWS, and so are the others. In PACKED, a tile has of each row the LSE (its maximum and log2 of
    its sum in one number), what that number's rounding lost, and delta; and in all ROWS places whether a row's LSE is LARGE.
    In TERMS, if they are wanted: -LSE in units of scores, and -delta, as `_in_parts`. The LSE is in one of both, and 0 in
    the other: in PACKED if some row's is LARGE.
    """
    if EARLY:
        gdc_launch_dependents()
    head = tl.program_id(1).to(tl.int64)
    batch = tl.program_id(2).to(tl.int64)
    tile = tl.program_id(0)
    position = tile * ROWS + tl.arange(0, ROWS)
    inside = position < T
    wide = position.to(tl.int64)[:, None]
    column = tl.arange(0, D)[None, :]
    # Strides come in units of 16 bytes, as TMA needs them too: the compiler sees that loads can be wide.
    o_at = batch * o_b * 8 + head * o_h * 8 + wide * o_t * 8 + column
    do_at = batch * do_b * 8 + head * do_h * 8 + wide * do_t * 8 + column
    o = tl.load(O + o_at, mask=inside[:, None], other=0.0).to(tl.float32)
    do = tl.load(DO + do_at, mask=inside[:, None], other=0.0).to(tl.float32)
    row = batch * H + head
    delta = tl.sum(o * do, 1)
    tiles = (T + ROWS - 1) // ROWS
    largest = tl.load(STATS + row * T_STATS + position, mask=inside, other=0.0)
    log_sum = tl.load(STATS + (BH + row) * T_STATS + position, mask=inside, other=0.0)
    lse, lost = _in_two_numbers(largest, log_sum)
    large = tl.max(tl.abs(lse), 0) >= LARGE
    at = tl.arange(0, ROWS)
    first = row * tiles + tile
    if TERMS is not None:
        DTYPE: tl.constexpr = TERMS.dtype.element_ty
        out = TERMS + first * 2 * ROWS * 16 + at[:, None] * 16 + tl.arange(0, 16)[None, :]
        tl.store(out, _in_parts(tl.where(large, 0.0, -lse / scale_log2), ROWS, DTYPE))
        tl.store(out + ROWS * 16, _in_parts(-delta, ROWS, DTYPE))
        lse = tl.where(large, lse, 0.0)
        lost = tl.where(large, lost, 0.0)
    # Within 16 rows: those of one thread (2t, 2t + 1, 2t + 8, 2t + 9) side by side.
    place = at // 16 * 16 + at % 8 // 2 * 4 + at % 16 // 8 * 2 + at % 2
    out = PACKED + first * 4 * ROWS + place
    tl.store(out, lse)
    tl.store(out + ROWS, lost)
    tl.store(out + 2 * ROWS, delta)
    tl.store(out + 3 * ROWS, tl.zeros([ROWS], tl.float32) + large.to(tl.float32))
    tl.store(DQ + (row * tiles * ROWS + wide) * D + column, tl.zeros([ROWS, D], tl.float32))


@triton.jit(do_not_specialize=("T", "H"))
def _backward_after_kernel(DQ32, DQ, T, H, scale, D: tl.constexpr, ROWS: tl.constexpr):
    """dQ from its float32 sums to the inputs' precision in (B, T, H, D).

    The sums are (B, H, T rounded up to whole tiles of ROWS, D), each tile in the order of registers.
    """
    head = tl.program_id(1).to(tl.int64)
    batch = tl.program_id(2).to(tl.int64)
    position = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = (position < T)[:, None]
    wide = position.to(tl.int64)[:, None]
    column = tl.arange(0, D)[None, :]
    tiles = (T + ROWS - 1) // ROWS
    dq = tl.load(DQ32 + ((batch * H + head) * tiles * ROWS + wide) * D + column)
    dq = _as_rows((dq * scale).to(DQ.dtype.element_ty), ROWS, D)
    tl.store(DQ + ((batch * T + wide) * H + head) * D + column, dq, mask=inside)


@triton.jit(do_not_specialize=("PARTS", "K", "GROUP", "T_STATS", "BH"))
def _merge_kernel(
    OF_PARTS, O, STATS, PARTS, K, GROUP, T_STATS, BH,
    MOST: tl.constexpr, D: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The output of one query from those over parts of the keys, each of which counts by its sum of exponentials.

    OF_PARTS has their statistics, (2, B, PARTS, K, T_STATS), a query head's at its place in the group, and then their outputs,
    (B, PARTS, K, GROUP, D). STATS are (2, B, H, 4), as the backward reads them.
    """
    head = tl.program_id(0)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    batch, place, of_keys = head // (K * GROUP), head % GROUP, head // GROUP % K
    part = tl.arange(0, MOST)
    inside = part < PARTS
    of_part = (batch * PARTS + part) * K + of_keys
    at = of_part * T_STATS + place
    plane = BH // GROUP * PARTS * T_STATS
    largest = tl.load(OF_PARTS + at, mask=inside, other=float("-inf"))
    log_sum = tl.load(OF_PARTS + plane + at, mask=inside, other=0.0)
    highest = tl.max(largest, 0)
    weight = tl.exp2(largest - highest + log_sum)
    total = tl.sum(weight, 0)
    o_at = 2 * plane + (of_part * GROUP + place)[:, None] * D + column[None, :]
    o = tl.load(OF_PARTS + o_at, mask=inside[:, None], other=0.0)
    # A part whose weights are all zero has no output.
    o = tl.sum(tl.where(log_sum[:, None] == float("-inf"), 0.0, o * (weight / total)[:, None]), 0)
    tl.store(O + head * D + column, o.to(O.dtype.element_ty))
    if tl.program_id(1) == 0:
        tl.store(STATS + head * 4, highest)
        tl.store(STATS + (BH + head) * 4, tl.log2(total))


@triton.jit(do_not_specialize=("T", "H", "v_b", "v_t", "v_h"))
def _transpose_kernel(V, OUT, T, H, v_b, v_t, v_h, D: tl.constexpr, KEYS: tl.constexpr):
    """V of 8 bits as (B, H, D, T rounded up to 16), with zeros after key T.

    Of every 16 keys, each four columns are keys that lie in one thread of S: `_forward._as_operand` says why.
    """
    head = tl.program_id(1).to(tl.int64)
    batch = tl.program_id(2).to(tl.int64)
    place = tl.program_id(0) * KEYS + tl.arange(0, KEYS)
    key = place // 16 * 16 + place // 2 % 2 * 8 + place % 16 // 4 * 2 + place % 2
    column = tl.arange(0, D)
    # Strides come in units of 16 bytes, as TMA needs them too: the compiler sees that loads can be wide.
    at = batch * v_b * 16 + head * v_h * 16 + key.to(tl.int64)[:, None] * v_t * 16 + column[None, :]
    v = tl.load(V + at, mask=(key < T)[:, None], other=0)
    columns = (T + 15) // 16 * 16
    out = OUT + ((batch * H + head) * D + column.to(tl.int64)[:, None]) * columns + place[None, :]
    tl.store(out, tl.trans(v), mask=(place < columns)[None, :])
