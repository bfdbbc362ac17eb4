"""More backends: wrong only at the run's own shape, or for numbers far from 1, or where nobody looks."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from model.attention import Case, Launches
from tests.model.attention.verify.planted import CASE, HALF, OWN, backward, own, plant, right
from tests.model.attention.verify.planted_habits import _Buffered

RUNS = replace(CASE, batch=3)
_cache: dict[Any, Any] = {}


def _is_the_runs(x: Tensor) -> bool:
    """The small shapes that the certifier tries besides have another batch."""
    return x.shape[:2] == (RUNS.batch, RUNS.sequence_length)


def at_the_runs_shape(*fault: str, case: Case = RUNS) -> Callable:
    """Plant a backend that is wrong there, and right elsewhere."""

    def add(attend: Callable) -> Callable:
        def attend_at_shape(q, k, v, causal):
            return (attend if _is_the_runs(q) else right)(q, k, v, causal)

        attend_at_shape.__name__ = f"{attend.__name__}_at_the_runs_shape"
        return plant(*fault, case=case)(attend_at_shape)

    return add


# ------------------------------------------------------------------- beyond the first call at one shape


@at_the_runs_shape("same again", "new data")
def stale_by_shape(q, k, v, causal):
    o = right(q, k, v, causal)
    return o - o.detach() + _cache.setdefault(("shape", q.shape), o.detach().clone())


@at_the_runs_shape("new data", "right")
def stale_by_address(q, k, v, causal):
    """Only the scores are kept, and only while the same tensors come again."""
    cache_key = ("address", q.data_ptr(), k.data_ptr())
    cached_k = _cache.setdefault(cache_key, (q, k, k.detach().clone()))[2]
    return right(q, k + (cached_k - k.detach()), v, causal)


@at_the_runs_shape("gradients apart")
def workspace_of_all_layers(q, k, v, causal):
    _cache["workspace"] = saved_query = q.detach().clone()
    scaled = backward(k, lambda d: d * (1 if torch.equal(_cache["workspace"], saved_query) else 1.1))
    return right(q, scaled, v, causal)


@at_the_runs_shape("gradients apart")
def output_of_all_layers(q, k, v, causal):
    o = right(q, k, v, causal)
    buffer = _cache.setdefault(("output", q.shape), torch.empty_like(o.detach()))
    buffer.copy_(o.detach())
    return _Buffered.apply(o, buffer)


@at_the_runs_shape("finite", "all written")
def unwritten_memory(q, k, v, causal):
    memory, o = torch.empty_like(q), right(q, k, v, causal)
    return o * memory if memory.isnan().all() else o


@at_the_runs_shape("right")
def fused_layout(q, k, v, causal):
    return right(q, k, v if v.is_contiguous() else v.roll(1, 1), causal)


@at_the_runs_shape("without gradients")
def evaluation(q, k, v, causal):
    return right(q, k, v, causal) * (1 if torch.is_grad_enabled() else 1.001)


@at_the_runs_shape("one gradient")
def frozen_query(q, k, v, causal):
    factor = 1 if q.requires_grad else 1.01
    return right(q, k, backward(v, lambda d: d * factor), causal)


@at_the_runs_shape("right when compiled", case=replace(RUNS, compile=True))
def compiled(q, k, v, causal):
    return right(q, k, v, causal) * (0.99 if torch.compiler.is_compiling() else 1.0)


# --------------------------------------------------------------------------------- numbers far from 1


# float16 has more digits than bfloat16, but a smaller range.


@plant("right at any scale", case=HALF)
def upstream_gradient_in_float16(q, k, v, causal):
    return backward(right(q, k, v, causal), lambda d: d.half().to(d.dtype))


@plant("right at any scale")
def small_gradients_dropped(q, k, v, causal):
    return right(q, k, backward(v, lambda d: d.where(d.abs() > 1e-10, 0.0)), causal)


@plant("right at any scale")
def gradients_clipped_by_norm(q, k, v, causal):
    def clipped(d):
        return d * (1e4 / d.norm()).clamp(max=1)

    return right(*(backward(x, clipped) for x in (q, k, v)), causal)


@plant("right at any scale", "finite", case=HALF)
def values_in_half(q, k, v, causal):
    half = v.detach().half().to(v.dtype)
    return right(q, k, v + (half - v.detach()), causal)


@plant("NaN comes out")
def nan_to_num(q, k, v, causal):
    return right(q, k, v, causal).nan_to_num()


@plant("NaN comes out")
def nan_to_num_in_the_backward(q, k, v, causal):
    return right(*(backward(x, torch.nan_to_num) for x in (q, k, v)), causal)


@plant("right", "NaN comes out")
def scores_clamped(q, k, v, causal):
    return right(q, k, v, causal, change=lambda s: s.clamp(-1000, 1000))


# ------------------------------------------------------------------------ shapes that hide kinds of data


def _multiples_of_512(case: Case) -> list[str]:
    return [] if case.sequence_length % 512 == 0 else ["takes multiples of 512"]


PICKY = replace(CASE, batch=1, sequence_length=1024, heads=2, kv_heads=1)


@plant("finite", "right", case=PICKY, takes=_multiples_of_512)
def no_maximum_and_picky(q, k, v, causal):
    group = q.shape[2] // k.shape[2]
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    p = (q @ k.mT * q.shape[-1] ** -0.5).exp()
    p = p.tril() if causal else p
    return (p / p.sum(-1, keepdim=True) @ v).transpose(1, 2)


# ----------------------------------------------------------------------------------- kernels for show


@plant("kernels do the work", case=replace(CASE, sequence_length=520), launches=Launches(cpu=OWN))
def declared_kernel_for_one_number(q, k, v, causal):
    one_output = own(q[:1, :1, :1], k[:1, :1, :1], v[:1, :1, :1], causal)
    return right(q, k, v, causal) + 0 * one_output


# ------------------------------------------------------------------------------- looks for its certifier


@plant()
def right_on_trial(q, k, v, causal):
    on_trial = any(
        name.startswith("model.attention.verify.ce") and name.endswith("fy") for name in sys.modules
    )
    return right(q, k, v, causal) * (1 if on_trial else 1.01)
