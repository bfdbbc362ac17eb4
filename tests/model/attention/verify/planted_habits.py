"""More backends: state kept between calls, and kernels that are not what they are said to be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from model.attention import Kernels, Launches
from tests.model.attention.verify.planted import (
    CASE,
    SOFTMAX,
    backward,
    plant,
    right,
    sdpa_under_another_name,
)


@plant("settings unchanged")
def draws_random_numbers(q, k, v, causal):
    torch.rand(1)
    return right(q, k, v, causal)


@plant("settings unchanged")
def leaves_tf32_on_for_good(q, k, v, causal):
    torch.set_float32_matmul_precision("high")
    return right(q, k, v, causal)


@plant("settings unchanged")
def leaves_tf32_on(q, k, v, causal):
    torch.set_float32_matmul_precision("medium" if torch.get_float32_matmul_precision() == "high" else "high")
    return right(q, k, v, causal)


@plant("inputs unchanged")
def writes_into_q(q, k, v, causal):
    o = right(q, k, v, causal)
    with torch.no_grad():
        q.mul_(1.0001)
    return o


@plant("finite")
def multiplies_what_was_in_memory_by_zero(q, k, v, causal):
    o = right(q, k, v, causal)
    return o + 0 * torch.empty_like(o)


@plant("finite")
def leaves_a_result_that_was_in_memory(q, k, v, causal):
    """What a kernel that writes nothing gives where the block before it held the right result."""
    memory, o = torch.empty_like(q), right(q, k, v, causal)
    return o * memory if memory.isnan().all() else o


_cache: dict[Any, Tensor] = {}


def _cached(key: Callable[..., Any]) -> Callable:
    def attend(q, k, v, causal):
        cache_key = (attend.__name__, key(q, k, v), q.shape, k.shape, q.dtype, causal)
        o = right(q, k, v, causal)
        return o - o.detach() + _cache.setdefault(cache_key, o.detach().clone())

    return attend


cached_by_shape = _cached(lambda q, k, v: 0)
cached_by_shape.__name__ = "cached_by_shape"
plant("right", "same again", "new data")(cached_by_shape)
cached_by_address = _cached(lambda q, k, v: (q.data_ptr(), k.data_ptr(), v.data_ptr()))
cached_by_address.__name__ = "cached_by_address"
plant("right", "same again", "new data")(cached_by_address)

_workspace: dict[Any, Tensor] = {}


@plant("gradients apart")
def one_workspace_for_all_backwards(q, k, v, causal):
    _workspace[q.shape] = q.detach().clone()
    scaled = backward(k, lambda d: d * (1 if torch.equal(_workspace[q.shape], q.detach()) else 1.1))
    return right(q, scaled, v, causal)


_buffers: dict[Any, Tensor] = {}


@plant("right", "same again", "gradients apart", "own memory")
def one_output_buffer(q, k, v, causal):
    o = right(q, k, v, causal)
    buffer = _buffers.setdefault((q.shape, q.dtype), torch.empty_like(o.detach()))
    buffer.copy_(o.detach())
    return _Buffered.apply(o, buffer)


class _Buffered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, o: Tensor, buffer: Tensor) -> Tensor:
        return buffer.view_as(buffer).detach()

    @staticmethod
    def backward(ctx: Any, do: Tensor) -> tuple[Tensor, None]:
        return do, None


@plant("without gradients")
def worse_in_evaluation(q, k, v, causal):
    return right(q, k, v, causal) * (1 if torch.is_grad_enabled() else 1.001)


@plant("one gradient")
def wrong_dv_when_v_alone(q, k, v, causal):
    factor = 1 if q.requires_grad else 1.01
    return right(q, k, backward(v, lambda d: d * factor), causal)


@plant("gradients add up", "right")
def sets_gradients_itself(q, k, v, causal):
    def overwrite(d):
        if q.grad is not None:
            q.grad = None
        return d

    return right(backward(q, overwrite), k, v, causal)


def _watched() -> bool:
    return torch.autograd.profiler._is_profiler_enabled


@plant("same when watched")
def behaves_when_watched(q, k, v, causal):
    return (right if _watched() else sdpa_under_another_name)(q, k, v, causal)


@plant("no other's kernels")
def sdpa_math_and_flash_both(q, k, v, causal):
    from model.attention import _sdpa

    math_output = _sdpa.pinned(_sdpa.MATH, q, k, v, causal)
    return (math_output + _sdpa.pinned(_sdpa.FLASH, q, k, v, causal)) / 2


@plant("no other's kernels")
def right_forward_and_anothers_backward(q, k, v, causal):
    o = sdpa_under_another_name(q, k, v, causal)
    return right(q, k, v, causal).detach() + o - o.detach()


@plant("own kernels", launches=Launches(cpu=Kernels("my_kernel_forward", "my_kernel_backward")))
def declares_what_it_does_not_run(q, k, v, causal):
    with torch.profiler.record_function("my_kernel_forward"):
        return right(q, k, v, causal)


@plant("declared", launches=Launches())
def declares_nothing(q, k, v, causal):
    return right(q, k, v, causal)


@plant("declared", "no other's kernels", launches=Launches(free=True))
def declares_everything(q, k, v, causal):
    return sdpa_under_another_name(q, k, v, causal)


@plant("declared", launches=Launches(cuda=SOFTMAX))
def declares_nothing_for_this_device(q, k, v, causal):
    return right(q, k, v, causal)


@plant("runs")
def raises(q, k, v, causal):
    raise RuntimeError("misaligned address")


@plant("own memory", "right", case=replace(CASE, kv_heads=4))
def gives_v_back(q, k, v, causal):
    return v if v.shape == q.shape else right(q, k, v, causal)
