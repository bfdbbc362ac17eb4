"""Helpers of the portable kernels with one fault each."""

import triton
import triton.language as tl


@triton.jit
def hides_the_diagonal(row, key, length_k, offset, CAUSAL: tl.constexpr, GROUP: tl.constexpr):
    return (key < length_k)[None, :] & (key[None, :] < (row // GROUP + offset)[:, None])


@triton.jit
def sees_one_more(row, key, length_k, offset, CAUSAL: tl.constexpr, GROUP: tl.constexpr):
    return (key < length_k)[None, :] & (key[None, :] <= (row // GROUP + offset + 1)[:, None])


@triton.jit
def forgets_the_group(row, key, length_k, offset, CAUSAL: tl.constexpr, GROUP: tl.constexpr):
    return (key < length_k)[None, :] & (key[None, :] <= (row + offset)[:, None])


@triton.jit
def drops_the_tail(first_row, length_q, length_k, offset, CAUSAL: tl.constexpr, GROUP: tl.constexpr,
                   ROWS: tl.constexpr, KEYS: tl.constexpr):  # fmt: skip
    return length_k // KEYS * KEYS, length_k // KEYS * KEYS


@triton.jit
def starts_one_tile_late(first_key, offset, CAUSAL: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr,
                         KEYS: tl.constexpr):  # fmt: skip
    return tl.maximum(first_key * GROUP // ROWS, 1), tl.cdiv((first_key + KEYS) * GROUP, ROWS)


@triton.jit
def masks_no_tile(first_key, offset, CAUSAL: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr,
                        KEYS: tl.constexpr):  # fmt: skip
    return first_key * GROUP // ROWS, first_key * GROUP // ROWS


@triton.jit
def forgets_the_head(
    seed, row, start, first_head, GROUP: tl.constexpr, KEYS: tl.constexpr, DROP: tl.constexpr
):
    return _left(seed, row // GROUP, start, row * 0, KEYS, DROP)


@triton.jit
def repeats_in_each_tile(seed, row, start, first_head, GROUP: tl.constexpr, KEYS: tl.constexpr,
                         DROP: tl.constexpr):  # fmt: skip
    return _left(seed, row // GROUP, 0, first_head + row % GROUP, KEYS, DROP)


@triton.jit
def drops_others(seed, row, start, first_head, GROUP: tl.constexpr, KEYS: tl.constexpr, DROP: tl.constexpr):
    return _left(seed + 1, row // GROUP, start, first_head + row % GROUP, KEYS, DROP)


@triton.jit
def drops_one_more(seed, row, start, first_head, GROUP: tl.constexpr, KEYS: tl.constexpr, DROP: tl.constexpr):
    return _left(seed, row // GROUP, start, first_head + row % GROUP, KEYS, DROP + 1)


@triton.jit
def _left(seed, query, start, head, KEYS: tl.constexpr, DROP: tl.constexpr):
    key = start + tl.arange(0, KEYS)
    head = head.to(tl.int32)[:, None]
    word, _, _, _ = tl.philox(seed, (key // 8)[None, :], query[:, None], head, 0, 10)
    return (word >> (key % 8 * 4)[None, :]) & 15 >= DROP
