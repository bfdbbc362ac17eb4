"""Wrong backends, each with one fault, and one that is right: what model.attention.verify has to tell apart.

Most are plain attention with one knob turned. `fault` names checks, at least one of which must refuse it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from model.attention import Backend, Case, Kernels, Launches, Supports, _reasons
from model.attention.verify.certificate import Certificate

# Plain matrix products and a softmax: PyTorch's operators for them are nobody's own.
SOFTMAX = Kernels(
    forward=r"^aten::(matmul|mul|masked_fill|softmax|_softmax)$",
    backward=r"^aten::(bmm|mul|masked_fill|sum|_softmax_backward_data)$",
    operators=True,
)
BY_SOFTMAX = Launches(cpu=SOFTMAX)
OWN = Kernels(r"^_Own$", r"^_OwnBackward$", operators=True)
NUMBERS = {"right"}


def refused_by(certificate: Certificate) -> list[str]:
    """Names of the checks that failed, each once, in order."""
    return list(dict.fromkeys(check.name for check in certificate.checks if not check.passed))


@dataclass(frozen=True)
class Planted:
    """A backend, the names of checks that may refuse it, and the case to try it at."""

    backend: Backend
    fault: set[str]
    case: Case


PLANTED: dict[str, Planted] = {}
CASE = Case("cpu", "float32", batch=2, sequence_length=160, heads=4, kv_heads=2, head_dim=32)
HALF = replace(CASE, dtype="bfloat16")
LONG = Case("cpu", "bfloat16", batch=1, sequence_length=4160, heads=1, kv_heads=1, head_dim=32)
HALF_AS_LONG = replace(LONG, sequence_length=2080)  # where sums in 16 bits already show in dK and dV


def takes_all(case: Case) -> list[str]:
    """Refuse only what no backend could run here."""
    return _reasons.declared(case, Supports(devices=("cpu", "cuda")))


def plant(
    *fault: str,
    case: Case = CASE,
    launches: Launches = BY_SOFTMAX,
    takes: Callable[[Case], list[str]] = takes_all,
) -> Callable:
    """Register a wrong attend."""

    def add(attend: Callable) -> Callable:
        name = attend.__name__.strip("_").replace("_", "-")
        backend = Backend(f"planted: {name}", takes, attend, launches)
        PLANTED[name] = Planted(backend, set(fault) or NUMBERS, case)
        return attend

    return add


def right(
    q_BTHD: Tensor,
    k_BTKD: Tensor,
    v_BTKD: Tensor,
    causal: bool,
    *,
    scale: float | None = None,
    change: Callable[[Tensor], Tensor] = lambda s: s,
    hidden: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> Tensor:
    """Plain attention, sums in float32. Knobs: the scale, what becomes of the scores, who is hidden from whom."""
    wide = torch.promote_types(q_BTHD.dtype, torch.float32)
    group = q_BTHD.shape[2] // k_BTKD.shape[2]
    q, k, v = (x.to(wide).transpose(1, 2) for x in (q_BTHD, k_BTKD, v_BTKD))
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    s = change(q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale))
    query, key = torch.arange(s.shape[-2])[:, None], torch.arange(s.shape[-1])
    mask = (key > query) & causal
    if hidden:
        mask = mask | hidden(query, key)
    return (s.masked_fill(mask, -torch.inf).softmax(-1) @ v).transpose(1, 2).to(q_BTHD.dtype)


right_backend = Backend("right, by plain operators", takes_all, right, Launches(cpu=SOFTMAX))

# ------------------------------------------------------------------------------- the list of the issue


@plant("right", "runs", "shape")
def swapped_heads_and_sequence(q, k, v, causal):
    group = q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(group, 2) for x in (k, v))
    return right(*(x.transpose(1, 2) for x in (q, k, v)), causal).transpose(1, 2)


@plant()
def scale_one_over_d(q, k, v, causal):
    return right(q, k, v, causal, scale=1 / q.shape[-1])


@plant()
def mask_off_by_one(q, k, v, causal):
    return right(q, k, v, False, hidden=lambda i, j: (j > i + 1) & causal)


@plant()
def last_tile_dropped(q, k, v, causal):
    T = q.shape[1]
    first_dropped = T - T % 64 if T > 64 else T
    return right(q, k, v, causal, hidden=lambda i, j: (j >= first_dropped) & (j != i))


@plant()
def groups_interleaved(q, k, v, causal):
    group = q.shape[2] // k.shape[2]
    return right(q, k.repeat(1, 1, group, 1), v.repeat(1, 1, group, 1), causal)


@plant()
def v_of_the_neighbour(q, k, v, causal):
    return right(q, k, v.roll(1, 2), causal)


class _Scaled(torch.autograd.Function):
    """The identity, whose gradient is changed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.change = change
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, dx: Tensor) -> tuple[Tensor, None]:
        return ctx.change(dx), None


def backward(x: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    return _Scaled.apply(x, change)


@plant()
def wrong_dk(q, k, v, causal):
    return right(q, backward(k, lambda d: d * 1.01), v, causal)


@plant()
def zero_dq(q, k, v, causal):
    return right(backward(q, torch.zeros_like), k, v, causal)


class _Own(torch.autograd.Function):
    """Tiled attention written out, sums in a precision of choice, delta left out on demand."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, causal: bool, sums: dict[str, torch.dtype]
    ) -> Tensor:
        group = q.shape[2] // k.shape[2]
        Q, K, V = (x.transpose(1, 2).float() for x in (q, k, v))
        K, V = (x.repeat_interleave(group, 1) for x in (K, V))
        s = Q @ K.mT * q.shape[-1] ** -0.5
        if causal:
            s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
        p = s.softmax(-1)
        o = _Own.add_up(p, V, sums.get("o"))
        ctx.save_for_backward(Q, K, V, p, o)
        ctx.group, ctx.sums, ctx.dtype = group, sums, q.dtype
        return o.transpose(1, 2).to(q.dtype)

    @staticmethod
    def backward(ctx: Any, do: Tensor) -> tuple[Any, ...]:
        Q, K, V, p, o = ctx.saved_tensors
        dO, scale, sums = do.transpose(1, 2).float(), Q.shape[-1] ** -0.5, ctx.sums
        ds = p * (dO @ V.mT - (dO * o).sum(-1, keepdim=True))
        dq = _Own.add_up(ds, K, sums.get("dq")) * scale
        dk = _Own.add_up(ds.mT, Q, sums.get("dk")) * scale
        dv = _Own.add_up(p.mT, dO, sums.get("dv"))
        dk, dv = (x.unflatten(1, (-1, ctx.group)).sum(2) for x in (dk, dv))
        return *(x.transpose(1, 2).to(ctx.dtype) for x in (dq, dk, dv)), None, None

    @staticmethod
    def add_up(a: Tensor, b: Tensor, sum_dtype: torch.dtype | None, tile: int = 128) -> Tensor:
        """a @ b, tile by tile; what is kept between tiles is rounded."""
        if sum_dtype is None:
            return a @ b
        total = torch.zeros(*a.shape[:-1], b.shape[-1], dtype=sum_dtype)
        for x, y in zip(a.split(tile, -1), b.split(tile, -2), strict=True):
            total = (total.float() + x @ y).to(sum_dtype)
        return total.float()


def own(q, k, v, causal, **sums: torch.dtype) -> Tensor:
    return _Own.apply(q, k, v, causal, sums)


def _low(step: str, dtype: torch.dtype) -> Callable:
    def attend(q, k, v, causal):
        return own(q, k, v, causal, **{step: dtype})

    attend.__name__ = f"{step}_added_up_in_{str(dtype).removeprefix('torch.')}"
    return attend


for _step, _case in (("o", LONG), ("dq", LONG), ("dk", HALF_AS_LONG), ("dv", HALF_AS_LONG)):
    plant(case=_case, launches=Launches(cpu=OWN))(_low(_step, torch.bfloat16))
plant(case=replace(HALF_AS_LONG, dtype="float16"), launches=Launches(cpu=OWN))(_low("dk", torch.float16))


@plant("no other's kernels")
def sdpa_under_another_name(q, k, v, causal):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    grouped = q.shape[1] != k.shape[1]
    return scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped).transpose(1, 2)
