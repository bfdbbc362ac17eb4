"""Numbers to call a backend with, each kind revealing one kind of fault, and how they lie in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from model.attention import _fp8
from model.attention.verify import reference
from model.attention.verify.call import bits
from model.attention.verify.cases import Variant
from model.attention.verify.reference import Exact, Inputs
from model.record.case import Case

if TYPE_CHECKING:
    from model.attention import Fp8

Draw = Callable[[Case, torch.Generator], Inputs]


class SolvedCall(NamedTuple):
    """A call, its exact results, and those of plain attention in the same precision."""

    inputs: Inputs
    exact: Exact
    plain: dict[str, Tensor]


@lru_cache(maxsize=64)
def solution(variant: Variant) -> SolvedCall:
    """The variant's numbers, contiguous. Kept for the next backend; `solution.cache_clear()` frees them."""
    case, inputs = variant.case, drawn(variant)
    return SolvedCall(
        inputs, reference.exact(inputs, case.causal), reference.same_precision(inputs, case.causal)
    )


def drawn(variant: Variant) -> Inputs:
    """The variant's numbers without its layout, contiguous."""
    case, wide = variant.case, unrounded(variant)
    if variant.fp8:
        narrow = _fp8.quantised(wide.q, wide.k, wide.v, variant.fp8.one_scale)
        do = wide.do.to(torch.bfloat16)
        return Inputs(narrow.q_BTHD, narrow.k_BTKD, narrow.v_BTKD, do, narrow.scales_3BK, variant.fp8)
    dtype = getattr(torch, case.dtype)
    inputs = _on_all_tensors(lambda x: x.to(dtype))(wide)
    if not variant.renewed:
        return inputs
    newer = drawn(replace(variant, seed=variant.seed + 1, renewed=""))
    return replace(inputs, **{name: getattr(newer, name) for name in variant.renewed})


def unrounded(variant: Variant) -> Inputs:
    """The variant's numbers in float32, before they are rounded to its precision.

    Where each key head gets a scale, heads differ in size, so that the scale of another one shows.
    """
    case, rng = variant.case, torch.Generator(variant.case.device).manual_seed(variant.seed)
    wide = DATA[variant.data](case, rng)
    if not variant.fp8 or variant.fp8.one_scale or variant.data == "ones":
        return wide
    place_BK = torch.arange(case.batch * case.kv_heads, device=case.device).view(case.batch, 1, -1, 1)
    size = 1.5 ** (place_BK % 3 - 1)
    of_queries = size.repeat_interleave(case.heads // case.kv_heads, 2)
    return replace(wide, q=wide.q / of_queries, k=wide.k * size, v=wide.v * size)


def laid_out(variant: Variant) -> Inputs:
    """The variant's numbers, in its layout."""
    return LAYOUTS[variant.layout](drawn(variant))


def solved_call(variant: Variant) -> SolvedCall:
    """The variant's numbers, in its layout. They are copies, so that a backend may write into them."""
    solved = solution(replace(variant, layout="contiguous"))
    inputs, scales_3BK = _on_all_tensors(torch.clone)(solved.inputs), solved.inputs.scales_3BK
    if scales_3BK is not None:
        inputs = replace(inputs, scales_3BK=scales_3BK.clone())
    return solved._replace(inputs=LAYOUTS[variant.layout](inputs))


def scaled(solved: SolvedCall, q: float = 1.0, v: float = 1.0, do: float = 1.0) -> SolvedCall:
    """The same call with Q, V and dO multiplied, and K divided by Q's factor, so that the scores stay.

    The factors are powers of two or their negatives: such products are exact in floating point, and so are
    the results that follow from the known ones.
    """
    x, steps = solved.inputs, {"o": v, "dq": v * do / q, "dk": v * do * q, "dv": do}
    return SolvedCall(
        Inputs(x.q * q, x.k / q, x.v * v, x.do * do),
        Exact(
            {step: solved.exact.values[step] * factor for step, factor in steps.items()},
            {step: solved.exact.spread[step] * abs(factor) for step, factor in steps.items()},
        ),
        {step: solved.plain[step] * factor for step, factor in steps.items()},
    )


def other(case: Case, fp8: Fp8 | None = None) -> SolvedCall:
    """Plain numbers that differ from the case's own everywhere, if possible without a new reference.

    Batches and heads are permuted, so that every place has other scores, and Q, K and V change their sign.
    """
    if case.batch == case.heads == 1 or fp8:
        return solved_call(Variant(case, seed=1, fp8=fp8))
    solved = solved_call(Variant(case))

    def moved(x_BTH: Tensor) -> Tensor:
        groups_BTKG = x_BTH.roll(1, 0).unflatten(2, (case.kv_heads, -1))
        moved_BTH: Tensor = groups_BTKG.roll((1, 1), (2, 3)).flatten(2, 3)
        return moved_BTH

    there = SolvedCall(
        _on_all_tensors(moved)(solved.inputs),
        Exact(_changed(moved, solved.exact.values), _changed(moved, solved.exact.spread)),
        _changed(moved, solved.plain),
    )
    return scaled(there, q=-1.0, v=-1.0)


def _changed(change: Callable[[Tensor], Tensor], tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {step: change(x) for step, x in tensors.items()}


def _plain(case: Case, rng: torch.Generator) -> Inputs:
    """Different everywhere: heads, batches and positions that are mixed up show."""
    keys = case.sequence_length
    queries = case.queries or keys
    q, k, v, do = (
        torch.randn(case.batch, length, heads, case.head_dim, generator=rng, device=case.device)
        for length, heads in (
            (queries, case.heads), (keys, case.kv_heads), (keys, case.kv_heads), (queries, case.heads)
        )
    )  # fmt: skip
    return Inputs(q, k, v, do)


def _scaled(factor: float) -> Draw:
    """Logits of standard deviation factor^2: exp() overflows, and the maximum moves between tiles."""

    def draw(case: Case, rng: torch.Generator) -> Inputs:
        x = _plain(case, rng)
        return replace(x, q=x.q * factor, k=x.k * factor)

    return draw


def _needle(case: Case, rng: torch.Generator) -> Inputs:
    """Each row attends to one key, anywhere it may: windows, lost tiles and shifted masks show."""
    x = _plain(case, rng)
    T, group = case.sequence_length, case.heads // case.kv_heads
    place = torch.rand(case.batch, x.q.shape[1], case.heads, 1, generator=rng, device=case.device)
    allowed = torch.arange(case.offset + 1, T + 1, device=case.device)[:, None, None] if case.causal else T
    index = (place * allowed).long().clamp_max(T - 1).expand(-1, -1, -1, case.head_dim)
    return replace(x, q=1.5 * x.k.repeat_interleave(group, 2).gather(1, index))


def _offset(case: Case, rng: torch.Generator) -> Inputs:
    """Even attention over numbers of one sign: sums grow from tile to tile, and must be kept in float32.

    Logits are small. V, dO and Q have a mean, and V follows K, so that O, dV, dK and dQ all grow in one
    direction.
    """
    x = _plain(case, rng)
    return Inputs(q=0.1 + 0.03 * x.q, k=x.k, v=x.k + 1, do=1 + 0.5 * x.do)


def _masked_gradient(case: Case, rng: torch.Generator) -> Inputs:
    """No gradient for the second half, as for padding: those rows of dQ are exactly zero."""
    x = _plain(case, rng)
    x.do[:, x.do.shape[1] // 2 :] = 0
    return x


def _repeated(case: Case, rng: torch.Generator) -> Inputs:
    """The same K and V in each batch, and the gradient of a plain sum: `expanded` needs both."""
    x = _plain(case, rng)
    k, v = (y[:1].expand_as(y).contiguous() for y in (x.k, x.v))
    return Inputs(x.q, k, v, torch.ones_like(x.do))


def _ones(case: Case, rng: torch.Generator) -> Inputs:
    """Equal logits over ones: the output is 1 at every length, unless a sum loses what is added to it."""
    x = _plain(case, rng)
    return replace(x, q=torch.zeros_like(x.q), v=torch.ones_like(x.v))


def _outliers(case: Case, rng: torch.Generator) -> Inputs:
    """One number of a thousand is ten times as large, as in FlashAttention-3's own measure of 8 bits.

    (Shah et al. 2024, arXiv:2407.08608, section 4.3: N(0, 1) + N(0, 100) Bernoulli(0.001).)
    """
    x = _plain(case, rng)

    def spiked(y: Tensor) -> Tensor:
        chance = torch.rand(y.shape, generator=rng, device=y.device) < 1e-3
        return y + 10 * torch.randn(y.shape, generator=rng, device=y.device) * chance

    return replace(x, q=spiked(x.q), k=spiked(x.k), v=spiked(x.v))


DATA: dict[str, Draw] = {
    "plain": _plain,
    "large logits": _scaled(8),
    "huge logits": _scaled(63),
    "needle": _needle,
    "offset": _offset,
    "masked gradient": _masked_gradient,
    "repeated": _repeated,
    "ones": _ones,
    "outliers": _outliers,
}


def _on_all_tensors(change: Callable[[Tensor], Tensor]) -> Callable[[Inputs], Inputs]:
    return lambda x: replace(x, q=change(x.q), k=change(x.k), v=change(x.v), do=change(x.do))


def _fused(x: Inputs) -> Inputs:
    """Parts of one tensor, as a fused projection gives them."""
    heads = [y.shape[2] for y in (x.q, x.k, x.v)]
    whole = torch.cat([bits(y) for y in (x.q, x.k, x.v)], dim=2).view(x.q.dtype)
    q, k, v = whole.split(heads, dim=2)
    return replace(x, q=q, k=k, v=v)


def _sliced(x_BTHD: Tensor) -> Tensor:
    """Parts of a larger tensor, surrounded by NaN."""
    whole = torch.full_like(x_BTHD, torch.nan).repeat(1, 2, 1, 1)[:, : x_BTHD.shape[1] + 3]
    whole = torch.cat((whole, whole), dim=3)
    part = whole[:, 3:, :, : x_BTHD.shape[3]]
    return part.copy_(x_BTHD)


def _cached(x: Inputs) -> Inputs:
    """K and V in the first part of a cache; where nothing has been kept yet, it holds NaN."""

    def first(x_BTKD: Tensor) -> Tensor:
        room = torch.full_like(x_BTKD[:, :1], torch.nan).repeat(1, 2 * x_BTKD.shape[1], 1, 1)
        return room[:, : x_BTKD.shape[1]].copy_(x_BTKD)

    return replace(x, k=first(x.k), v=first(x.v))


def _expanded(x: Inputs) -> Inputs:
    """K, V and the gradient read the same memory many times."""
    k, v = (y[:1].expand_as(y) for y in (x.k, x.v))
    return Inputs(x.q, k, v, x.do[:1, :1, :1, :1].expand_as(x.do))


LAYOUTS: dict[str, Callable[[Inputs], Inputs]] = {
    "contiguous": lambda x: x,
    "fused qkv": _fused,
    "heads first": _on_all_tensors(lambda y: y.transpose(1, 2).contiguous().transpose(1, 2)),
    "head dim strided": _on_all_tensors(lambda y: y.mT.contiguous().mT),
    "sliced": _on_all_tensors(_sliced),
    "expanded": _expanded,
    "cached": _cached,
}
