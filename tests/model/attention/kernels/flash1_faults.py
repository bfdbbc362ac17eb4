"""Helpers of flash1's kernels with one fault each."""

import triton
import triton.language as tl


@triton.jit
def hides_the_diagonal(row, key, length_k, offset, CAUSAL: tl.constexpr):
    return (key < length_k) & (key < row + offset)


@triton.jit
def sees_one_more(row, key, length_k, offset, CAUSAL: tl.constexpr):
    return (key < length_k) & (key <= row + offset + 1)


@triton.jit
def starts_one_tile_late(first_key, offset, CAUSAL: tl.constexpr, ROWS: tl.constexpr):
    return tl.where(first_key > 0, tl.maximum(first_key - offset, 0) // ROWS * ROWS + ROWS, 0)


@triton.jit
def is_always_last(first_key, last_row, length_k, offset, CAUSAL: tl.constexpr, KEYS: tl.constexpr):
    return first_key >= 0


@triton.jit
def ends_one_tile_early(first_key, last_row, length_k, offset, CAUSAL: tl.constexpr, KEYS: tl.constexpr):
    return first_key + 2 * KEYS >= tl.minimum(length_k, last_row + offset + 1)
