"""Attention as it is defined, forward and backward, in float64 or with the roundings of a lower precision.

It takes one block of rows after another, so that only a slice of the T x T scores ever exists. Exact and
rounded results come from the same lines and differ only in the precisions `wide` and `narrow` of `_Run`.

The formulas are FlashAttention-2's (Dao 2023, arXiv:2307.08691, section 2.3), with S = Q K^T / sqrt(D) and
P = softmax(S):
    O = P V,  dV = P^T dO,  dP = dO V^T,  dS = P * (dP - delta),  delta = rowsum(dO * O)
    dQ = dS K / sqrt(D),  dK = dS^T Q / sqrt(D)

Shapes: B batch, T sequence, H query heads, K key/value heads, D head dim; N (batch, key head) pairs, G query
heads of one key head, R = G * (rows of a block) stacked rows, U keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from model.attention import _fp8

if TYPE_CHECKING:
    from model.attention import Fp8

STEPS = ("o", "dq", "dk", "dv")
# Of 8 bits: half a unit of P's last place, relative; the scale of a row's weights, whose largest becomes
# LIFT, which E4M3 holds exactly; and half of the smallest step.
U8, LIFT, SMALLEST_8 = 2.0**-4, 256.0, 2.0**-10
# Hopper's tensor cores add up 32 products of 8 bits at once, and then cut the sum to 13 bits after the
# leading one ("DeepSeek-V3", arXiv:2412.19437, section 3.3.2, has 14 bits in all).
AT_ONCE, U14 = 32, 2.0**-13
ELEMENTS = {"cpu": 2**21, "cuda": 2**25}  # scores in one block: 16 MiB of float64, and 256 MiB
U32 = 2.0**-24  # unit roundoff of float32, in which every kernel keeps scores and sums
DEPTH = 8  # products that a tensor core adds up at once, at least; then it truncates the sum, always down
SUM2 = U32**2 / 6  # mean squared error of an addition in float32, relative to its sum, over all mantissas


@dataclass(frozen=True)
class Inputs:
    """One call and its upstream gradient: q, do (B, T, H, D); k, v (B, T, K, D).

    k and v may be longer than q. Under the causal mask the last query then stands at the last key.

    Attributes:
        scales_3BK: of numbers of 8 bits, which are attended to forward only.
        fp8: by whose arithmetic these are judged.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    do: Tensor
    scales_3BK: Tensor | None = None
    fp8: Fp8 | None = None

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the call, and so of every result, but for 8 bits: they give bfloat16."""
        return self.q.dtype if self.scales_3BK is None else torch.bfloat16

    def widened(self, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """Q, K and V in this precision: what they count."""
        if self.scales_3BK is None:
            return self.q.to(dtype), self.k.to(dtype), self.v.to(dtype)
        pairs = zip((self.q, self.k, self.v), self.scales_3BK, strict=True)
        q, k, v = (_fp8.dequantised(x, scale_BK, dtype) for x, scale_BK in pairs)
        return q, k, v


@dataclass(frozen=True)
class Exact:
    """Results in float64, and how far one rounding of each intermediate would move each row.

    Attributes:
        values: o, dq, dk, dv in float64.
        spread: the expected norm of each row's error, (B, T, heads): see `_Block.spread_rows`.
    """

    values: dict[str, Tensor]
    spread: dict[str, Tensor]


def exact(inputs: Inputs, causal: bool, elements: Mapping[str, int] = ELEMENTS) -> Exact:
    """Float64 results for these very numbers, and the spread of results in their own precision.

    Args:
        elements: scores in one block, by device.
    """
    run = _Run(inputs, causal, elements, wide=torch.float64, narrow=None)
    run.go()
    return Exact(run.values(), {step: x.sqrt() for step, x in run.spreads().items()})


def same_precision(inputs: Inputs, causal: bool, elements: Mapping[str, int] = ELEMENTS) -> dict[str, Tensor]:
    """Plain attention in the inputs' precision: sums in float32; O, P, dS and the results rounded once each.

    These are exactly the roundings that a fused kernel cannot avoid. A single query meets its keys in
    products of one row. Libraries add up their long sums in another order than those of several rows, and in
    float32 it errs more. So that is done here too, where no other query head shares the keys.
    """
    alike = inputs.q.shape[1] == 1 and inputs.scales_3BK is None
    group = inputs.q.shape[2] // inputs.k.shape[2] if alike else 1
    alone = inputs
    if group > 1:
        alone = replace(
            inputs, k=inputs.k.repeat_interleave(group, 2), v=inputs.v.repeat_interleave(group, 2)
        )
    run = _Run(alone, causal, elements, wide=torch.float32, narrow=inputs.dtype)
    with highest():
        run.go()
    results = run.values()
    if group > 1:
        results |= {step: results[step].unflatten(2, (-1, group)).sum(3) for step in ("dk", "dv")}
    return {step: x.to(inputs.dtype) for step, x in results.items()}


class _Run:
    """The loop over blocks, and the results that they add to."""

    def __init__(
        self,
        inputs: Inputs,
        causal: bool,
        elements: Mapping[str, int],
        wide: torch.dtype,
        narrow: torch.dtype | None,
    ) -> None:
        self.causal, self.narrow = causal, narrow
        self.budget = elements[inputs.q.device.type]
        self.B, self.T, self.H, self.D = inputs.q.shape
        self.keys, self.K = inputs.k.shape[1:3]
        self.offset = self.keys - self.T
        self.G = self.H // self.K
        self.scale = self.D**-0.5
        self.unit = torch.finfo(inputs.dtype).eps / 2
        self.smallest = torch.finfo(inputs.dtype).smallest_normal * self.unit  # half the smallest step
        self.fp8 = inputs.fp8
        q, k, v = (x.detach() for x in inputs.widened(wide))
        self.q_NGTD, self.do_NGTD = (self._grouped(x) for x in (q, inputs.do.detach().to(wide)))
        self.k_NTD, self.v_NTD = (self._grouped(x)[:, 0] for x in (k, v))
        if inputs.scales_3BK is not None:
            self.scale_v_N11 = inputs.scales_3BK[2].flatten()[:, None, None].to(wide)
        self.o_NGTD, self.dq_NGTD = torch.zeros_like(self.q_NGTD), torch.zeros_like(self.q_NGTD)
        self.dk_NTD, self.dv_NTD = torch.zeros_like(self.k_NTD), torch.zeros_like(self.v_NTD)
        # Squared norms of expected errors, a number a row.
        self.spread_o_NGT, self.spread_dq_NGT = self.q_NGTD.new_zeros(2, *self.q_NGTD.shape[:-1])
        self.spread_dk_NT, self.spread_dv_NT = self.k_NTD.new_zeros(2, *self.k_NTD.shape[:-1])
        # The squared terms that add up to a row.
        self.terms_dk_NT, self.terms_dv_NT = self.k_NTD.new_zeros(2, *self.k_NTD.shape[:-1])
        # Errors of one sign, which add up unsquared.
        self.bias_dk_NT = torch.zeros_like(self.spread_dk_NT)

    def go(self) -> None:
        """Visit every block of rows of every pair of batch and key head."""
        N, T = self.B * self.K, self.T
        pairs = max(1, self.budget // (self.G * T * self.keys))
        rows = max(1, min(self.budget // (min(pairs, N) * self.G * self.keys), max(T // 4, 256)))
        for first in range(0, N, pairs):
            own_pairs = slice(first, first + pairs)
            for start in range(0, T, rows):
                _Block(self, own_pairs, start, min(start + rows, T)).go()
        if self.narrow is None and self.unit == U32:
            key_U = torch.arange(self.keys, device=self.k_NTD.device)
            hidden_U = (key_U - self.offset).clamp_min(0) if self.causal else torch.zeros_like(key_U)
            rows_U = self.G * (self.T - hidden_U)
            self.spread_dk_NT += summed(self.dk_NTD, self.terms_dk_NT, rows_U)
            self.spread_dv_NT += summed(self.dv_NTD, self.terms_dv_NT, rows_U)
        self.dk_NTD *= self.scale
        self.spread_dk_NT = (self.spread_dk_NT + self.bias_dk_NT.square()) * self.scale**2
        if self.narrow is None:
            self.spread_dk_NT += self.rounding(self.dk_NTD)
            self.spread_dv_NT += self.rounding(self.dv_NTD)

    def cut(self, x: Tensor) -> Tensor:
        """Round as if stored in the narrow precision."""
        return x if self.narrow is None else x.to(self.narrow).to(x.dtype)

    def cut_weights(self, p_NRU: Tensor) -> Tensor:
        """Round P as an operand of the next product; of 8 bits relative to its row's largest."""
        if self.narrow is None or not self.fp8:
            return self.cut(p_NRU)
        largest_NR1 = p_NRU.amax(-1, keepdim=True)
        lifted_NRU = (p_NRU / largest_NR1 * LIFT).to(_fp8.DTYPE)
        return lifted_NRU.to(p_NRU.dtype) * (largest_NR1 / LIFT)

    def cut_output(self, o_NRD: Tensor, pairs: slice) -> Tensor:
        """Round O as it is stored, with V's scale where it has 8 bits."""
        if self.narrow is not None and self.fp8 and self.fp8.rounds_output:
            scale_N11 = self.scale_v_N11[pairs]
            o_NRD = (o_NRD / scale_N11).to(_fp8.DTYPE).to(o_NRD.dtype) * scale_N11
        return self.cut(o_NRD)

    def rounding(self, x_D: Tensor) -> Tensor:
        """The largest squared norm of the error of rounding a row once."""
        return self.unit**2 * x_D.square().sum(-1) + self.smallest**2 * self.D

    def values(self) -> dict[str, Tensor]:
        """The four results in the seam's layout."""
        parts = (self.o_NGTD, self.dq_NGTD, self.dk_NTD[:, None], self.dv_NTD[:, None])
        return dict(zip(STEPS, map(self._seam, parts), strict=True))

    def spreads(self) -> dict[str, Tensor]:
        """The squared spreads, (B, T, heads)."""
        parts = (
            self.spread_o_NGT,
            self.spread_dq_NGT,
            self.spread_dk_NT[:, None],
            self.spread_dv_NT[:, None],
        )
        return {step: self._seam(x[..., None])[..., 0] for step, x in zip(STEPS, parts, strict=True)}

    def _grouped(self, x_BTHD: Tensor) -> Tensor:
        x_NGTD: Tensor = x_BTHD.unflatten(2, (self.K, -1)).permute(0, 2, 3, 1, 4).flatten(0, 1).contiguous()
        return x_NGTD

    def _seam(self, x_NGTD: Tensor) -> Tensor:
        x_BTHD: Tensor = x_NGTD.unflatten(0, (self.B, self.K)).permute(0, 3, 1, 2, 4).flatten(2, 3)
        return x_BTHD


class _Block:
    """Some rows of some pairs, with all keys that they may see."""

    def __init__(self, run: _Run, pairs: slice, start: int, end: int) -> None:
        self.run = run
        self.rows = (pairs, slice(None), slice(start, end))
        self.keys = (pairs, slice(0, end + run.offset if run.causal else run.keys))
        self.q_NRD, self.do_NRD = (x[self.rows].flatten(1, 2) for x in (run.q_NGTD, run.do_NGTD))
        self.k_NUD, self.v_NUD = run.k_NTD[self.keys], run.v_NTD[self.keys]
        device, first, last = run.q_NGTD.device, start + run.offset, end + run.offset
        self.hidden_RU = None  # where a row would see its future
        last_key_R = torch.as_tensor(run.keys - 1, device=device)
        if run.causal:
            last_key_R = torch.arange(first, last, device=device).repeat(run.G)  # where each row stands
            self.hidden_RU = torch.arange(0, last, device=device) > last_key_R[:, None]
        self.seen_R1 = last_key_R[..., None] + 1

    def go(self) -> None:
        """Forward and backward of the block (the module's formulas)."""
        run = self.run
        s_NRU = (self.q_NRD @ self.k_NUD.mT) * run.scale
        if self.hidden_RU is not None:
            s_NRU.masked_fill_(self.hidden_RU, -torch.inf)
        p_NRU = s_NRU.softmax(-1)
        cut_NRU = run.cut_weights(p_NRU)
        o_NRD = run.cut_output(cut_NRU @ self.v_NUD, self.keys[0])
        run.o_NGTD[self.rows] = o_NRD.unflatten(1, (run.G, -1))
        if run.fp8:  # forward only
            if run.narrow is None:
                self.spread_of_8_bits(run.fp8, s_NRU, p_NRU, o_NRD)
            return
        delta_NR1 = (self.do_NRD * o_NRD).sum(-1, keepdim=True)
        ds_NRU = run.cut(p_NRU * (self.do_NRD @ self.v_NUD.mT - delta_NR1))
        dq_NRD = ds_NRU @ self.k_NUD * run.scale
        run.dq_NGTD[self.rows] = dq_NRD.unflatten(1, (run.G, -1))
        run.dv_NTD[self.keys] += cut_NRU.mT @ self.do_NRD
        run.dk_NTD[self.keys] += ds_NRU.mT @ self.q_NRD
        if run.narrow is None:
            self.spread_rows(s_NRU, p_NRU, o_NRD, ds_NRU, dq_NRD)

    def spread_rows(
        self, s_NRU: Tensor, p_NRU: Tensor, o_NRD: Tensor, ds_NRU: Tensor, dq_NRD: Tensor
    ) -> None:
        """Add up errors to first order: each rounding moves its number by its unit u, independently.

        P and dS are rounded to the narrow precision, and inherit the scores' error in float32, which exp()
        turns into a relative one (4 operations: product, scale, difference, exponential), the difference by
        the row's largest score. O is rounded, its error reaches dS through delta, and every result is rounded
        at the end. Kernels round dS before or after they scale it, which matters where it is subnormal. In
        float32 no such rounding hides the sums over keys, and over rows, which `summed` adds.

        One error is not independent: that of the sum over the keys, for O, where all rows see the same
        even keys. Tensor cores truncate it at each addition, and float32 rounds it alike in all rows. Errors
        of one sign reach dK from every row. (Seen on an H200 in float16 with 8320 even keys: given the
        kernel's O, float64 reproduces the kernel's dK to a hundredth of that error.)
        """
        run = self.run
        error2_NRU = self.score_error2(s_NRU, p_NRU).mul_((4 * U32) ** 2).add_(run.unit**2)
        q2_NR1, do2_NR1, k2_NU1, v2_NU1 = (
            x.square().sum(-1, keepdim=True) for x in (self.q_NRD, self.do_NRD, self.k_NUD, self.v_NUD)
        )
        p2_NRU = p_NRU.square()
        move_p_NRU = (p2_NRU * error2_NRU).add_(run.smallest**2)
        spread_o_NR = (move_p_NRU @ v2_NU1)[..., 0] + run.rounding(o_NRD)
        rounded_dq_NR, ds2_NRU = run.rounding(dq_NRD), ds_NRU.square()
        cut_R1 = self.seen_R1 / DEPTH * U32
        if run.unit == U32:
            seen_R = self.seen_R1[..., 0]
            spread_o_NR += summed(o_NRD, (p2_NRU @ v2_NU1)[..., 0], seen_R)
            rounded_dq_NR += summed(dq_NRD, run.scale**2 * (ds2_NRU @ k2_NU1)[..., 0], seen_R)
            run.terms_dv_NT[self.keys] += (p2_NRU.mT @ do2_NR1)[..., 0]
            run.terms_dk_NT[self.keys] += (ds2_NRU.mT @ q2_NR1)[..., 0]
            cut_R1 = (self.seen_R1 / 3 * SUM2).sqrt()
        delta2_NR = spread_o_NR * do2_NR1[..., 0] / run.D
        move_ds_NRU = ds2_NRU.mul_(error2_NRU).add_((run.smallest / run.scale) ** 2)
        mean_key_NR = (p_NRU @ self.k_NUD).square().sum(-1)
        spread_dq_NR = run.scale**2 * ((move_ds_NRU @ k2_NU1)[..., 0] + delta2_NR * mean_key_NR)
        run.spread_o_NGT[self.rows] = spread_o_NR.unflatten(1, (run.G, -1))
        run.spread_dq_NGT[self.rows] = (spread_dq_NR + rounded_dq_NR).unflatten(1, (run.G, -1))
        run.spread_dv_NT[self.keys] += (move_p_NRU.mT @ do2_NR1)[..., 0]
        move_ds_NRU += p2_NRU.mul_(delta2_NR[..., None])
        run.spread_dk_NT[self.keys] += (move_ds_NRU.mT @ q2_NR1)[..., 0]
        cut_NR1 = (self.do_NRD * o_NRD).abs().sum(-1, keepdim=True) * cut_R1
        run.bias_dk_NT[self.keys] += (p_NRU.mT @ (cut_NR1 * q2_NR1.sqrt()))[..., 0]

    def score_error2(self, s_NRU: Tensor, p_NRU: Tensor) -> Tensor:
        """The squared error of exp(score - largest), relative, of operations that err by 1 of their operands.

        It writes to the scores. The product errs by its terms, which may cancel.
        """
        largest_NR1 = s_NRU.amax(-1, keepdim=True)
        terms_NRU = (self.q_NRD.square() @ self.k_NUD.square().mT).mul_(self.run.scale**2)
        error2_NRU = torch.maximum(s_NRU.masked_fill_(p_NRU == 0, 0).square_(), terms_NRU)
        return torch.maximum(error2_NRU, largest_NR1.square())

    def spread_of_8_bits(self, fp8: Fp8, s_NRU: Tensor, p_NRU: Tensor, o_NRD: Tensor) -> None:
        """Add up what E4M3 and the tensor cores' sums of its products move each row of the output.

        P is rounded to 4 bits, or by half of E4M3's smallest step below its row's largest. Sums are cut after
        each AT_ONCE products: those of the scores for each piece of a head dim; those of the output for each
        piece of the keys that the backend adds up so. There the sum grows from 0, so that it loses half of
        what its last value would lose each time; and it loses always in one direction.
        """
        run = self.run
        score_unit = max(1.0, run.D / AT_ONCE) * U14
        move_p_NRU = self.score_error2(s_NRU, p_NRU).mul_(score_unit**2).add_(U8**2).mul_(p_NRU.square())
        move_p_NRU.add_((p_NRU.amax(-1, keepdim=True) * (SMALLEST_8 / LIFT)).square())
        if self.hidden_RU is not None:
            move_p_NRU.masked_fill_(self.hidden_RU, 0)
        spread_NR = (move_p_NRU @ self.v_NUD.square().sum(-1, keepdim=True))[..., 0] + run.rounding(o_NRD)
        keys_R1 = self.seen_R1.clamp_max(fp8.keys_summed or run.keys)
        lost_NRD = (p_NRU @ self.v_NUD.abs()) * (keys_R1 / AT_ONCE * (U14 / 2))
        spread_NR += lost_NRD.square().sum(-1)
        if fp8.rounds_output:
            smallest_N1 = SMALLEST_8 * run.scale_v_N11[self.keys[0]][..., 0]
            spread_NR += U8**2 * o_NRD.square().sum(-1) + smallest_N1**2 * run.D
        run.spread_o_NGT[self.rows] = spread_NR.unflatten(1, (run.G, -1))


def summed(total_D: Tensor, terms2: Tensor, count: Tensor) -> Tensor:
    """The expected squared norm of the error of rows that were added up in float32, one term after the other.

    Each addition rounds the sum so far. Its square is, after k of n terms, (k/n)^2 of the total's and k/n of
    the sum of squared terms: n/3 and n/2 of these over all additions. No kernel has to add in a better order.

    Args:
        total_D: the rows.
        terms2: the sum of the squared norms of a row's terms.
        count: the number of these.
    """
    return SUM2 * count * (total_D.square().sum(-1) / 3 + terms2 / 2)


@contextmanager
def highest() -> Iterator[None]:
    """Keep TF32 and bfloat16 out of float32 matrix products in the body."""
    before = matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        if isinstance(before, str):
            torch.set_float32_matmul_precision(before)
        else:
            places = _precisions()
            for name, precision in before.items():
                places[name].fp32_precision = precision


def matmul_precision() -> str | dict[str, str]:
    """PyTorch's setting for all devices, or, once a program has set them one by one, each by its name.

    PyTorch refuses to read the former after the latter.
    """
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return {name: place.fp32_precision for name, place in _precisions().items()}


def _precisions() -> dict[str, Any]:
    backends: Any = torch.backends
    return {
        "all": backends,
        "cudnn": backends.cudnn,
        "mkldnn": backends.mkldnn,
        "cuda.matmul": backends.cuda.matmul,
        "mkldnn.matmul": backends.mkldnn.matmul,
    }
