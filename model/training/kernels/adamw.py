"""AdamW in one pass over memory, and the norm of the gradients in another; `model/training/optim.py` says what is computed.

The step reads a parameter, its gradient and both states, and writes all but the gradient: 14 bytes a parameter in
16 bits.
"""

from collections.abc import Sequence
from functools import cache
from itertools import accumulate

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024  # elements that a program of the step updates
SUMMED = 8192  # elements that a program of the norm sums
WIDTH = 1024  # sums that the next program adds at a time


@triton.jit
def _step(
    parameters, gradients, means, squares, divisor, size, rate, decay, bias1, bias2,
    BETA1: tl.constexpr, BETA2: tl.constexpr, EPSILON: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Update a block of one tensor: computed in float32, rounded once."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    p = tl.load(parameters + at, mask=inside).to(tl.float32)
    g = tl.load(gradients + at, mask=inside).to(tl.float32) / tl.load(divisor)
    m = tl.load(means + at, mask=inside).to(tl.float32)
    v = tl.load(squares + at, mask=inside).to(tl.float32)
    m += (1 - BETA1) * (g - m)
    v += (1 - BETA2) * (g * g - v)
    p -= rate * decay * p
    p -= (rate / bias1) * m / (tl.sqrt(v / bias2) + EPSILON)
    tl.store(parameters + at, p.to(parameters.dtype.element_ty), mask=inside)
    tl.store(means + at, m.to(means.dtype.element_ty), mask=inside)
    tl.store(squares + at, v.to(squares.dtype.element_ty), mask=inside)


@triton.jit
def _sum_of_squares(values, sums, size, SUMMED: tl.constexpr):
    """Sum the squares of SUMMED elements of one tensor, in float32, into one element of `sums`."""
    at = tl.program_id(0).to(tl.int64) * SUMMED + tl.arange(0, SUMMED)
    x = tl.load(values + at, mask=at < size, other=0.0).to(tl.float32)
    tl.store(sums + tl.program_id(0), tl.sum(x * x))


@triton.jit
def _norm(sums, starts, norms, MOST: tl.constexpr, WIDTH: tl.constexpr):
    """The root of one tensor's sums, added up. No tensor has more of them than MOST."""
    start, end = tl.load(starts + tl.program_id(0)), tl.load(starts + tl.program_id(0) + 1)
    total = tl.zeros((WIDTH,), tl.float32)
    for offset in range(0, MOST, WIDTH):
        mine = start + offset + tl.arange(0, WIDTH)
        total += tl.load(sums + mine, mask=mine < end, other=0.0)
    tl.store(norms + tl.program_id(0), tl.sqrt(tl.sum(total)))


def step(
    parameter: Tensor,
    gradient: Tensor,
    mean: Tensor,
    square: Tensor,
    divisor: Tensor,
    *,
    rate: float,
    decay: float,
    betas: tuple[float, float],
    epsilon: float,
    count: int,
) -> None:
    """Update one parameter and its states in place. All are contiguous tensors of one size on one GPU.

    Args:
        divisor: of the gradient, one float32.
        count: this step's number, from 1.
    """
    size, (beta1, beta2) = parameter.numel(), betas
    if not size:  # a process's piece of a small parameter that is split over many
        return
    _step[(triton.cdiv(size, BLOCK),)](
        parameter, gradient, mean, square, divisor, size, rate, decay, 1 - beta1**count, 1 - beta2**count,
        BETA1=beta1, BETA2=beta2, EPSILON=epsilon, BLOCK=BLOCK, num_warps=8,
    )  # fmt: skip


def norms(tensors: Sequence[Tensor]) -> Tensor:
    """The Euclidean norm of each contiguous tensor, in float32; the same for the same values, bit by bit."""
    programs = [max(1, triton.cdiv(tensor.numel(), SUMMED)) for tensor in tensors]
    sums = torch.empty(sum(programs), dtype=torch.float32, device=tensors[0].device)
    for tensor, count, partial_sums in zip(tensors, programs, sums.split(programs), strict=True):
        _sum_of_squares[(count,)](tensor, partial_sums, tensor.numel(), SUMMED=SUMMED, num_warps=8)
    norms = torch.empty(len(tensors), dtype=torch.float32, device=sums.device)
    starts = _on_device((0, *accumulate(programs)), sums.device)
    _norm[(len(tensors),)](sums, starts, norms, MOST=max(programs), WIDTH=WIDTH)
    return norms


@cache
def _on_device(values: tuple[int, ...], device: torch.device) -> Tensor:
    """Copied once: a copy in the midst of a step would wait for the device."""
    return torch.tensor(values, device=device)
