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
