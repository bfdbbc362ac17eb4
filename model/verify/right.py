"""Whether output and gradients are right, and a call is a function of its inputs alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from model.attention import Backend, Case
from model.verify import data, reference
from model.verify.call import Subject, call, gradients, leaves
from model.verify.cases import Variant
from model.verify.certificate import Check
from model.verify.data import Known
from model.verify.memory import poisoned
from model.verify.reference import Inputs


def check(backend: Backend, variant: Variant) -> list[Check]:
    """Output, dQ, dK and dV of one variant against float64."""
    subject = Subject(backend, variant.case, str(variant))
    found = data.of(variant)
    subject.numbers("right", call(subject, found.inputs), found.exact, found.plain)
    return subject.checks


def habits(backend: Backend, case: Case) -> list[Check]:
    """State that a call leaves behind, or takes from another: each habit of a training loop, once.

    A backend that compiles for seconds is spared those that would compile it again.
    """
    checks = []
    for habit in _HABITS if not backend.compiles else _HABITS[:-1]:
        subject = Subject(backend, case, str(habit.__doc__).partition(":")[0])
        with subject.running(subject.variant):
            habit(subject)
        checks += subject.checks
    return checks


def deterministic(subject: Subject) -> bool:
    """Whether a call gives the same bits again, forward and backward: sums by atomic additions need not.

    Asked ten times on a GPU, where a difference may be rare, and three on a CPU.
    """
    inputs = data.drawn(Variant(subject.case))
    first = call(subject, inputs)
    for _ in range(9 if subject.case.device == "cuda" else 2):
        again = call(subject, inputs)
        if not all(step in again and torch.equal(x, again[step]) for step, x in first.items()):
            return False
    return True


def _known(subject: Subject, seed: int) -> Known:
    return data.of(Variant(subject.case, seed=seed))


def _again(subject: Subject) -> None:
    """Same again: other data of the same shape in between, then the first again."""
    for seed in (0, 1, 0):
        found = _known(subject, seed)
        subject.numbers("same again", call(subject, found.inputs), found.exact, found.plain)


def _in_place(subject: Subject) -> None:
    """New data in the same tensors: as a training loop that reuses its memory gives them."""
    first, second = _known(subject, 0).inputs, _known(subject, 1).inputs
    tensors = [x.clone().requires_grad_() for x in (first.q, first.k, first.v)]
    subject.forward(*tensors)
    for tensor, new in zip(tensors[::-1], (second.v, second.k, second.q), strict=True):
        with torch.no_grad():
            tensor.copy_(new)
        o = subject.forward(*tensors).detach()
        found = _mixed(subject, [x.detach() for x in tensors], first.do)
        subject.numbers("new data", {"o": o}, found.exact, found.plain)


def _mixed(subject: Subject, tensors: list[Tensor], do: Tensor) -> Known:
    q, k, v = tensors
    inputs, causal = Inputs(q, k, v, do), subject.case.causal
    return Known(inputs, reference.exact(inputs, causal), reference.same_precision(inputs, causal))


def _interleaved(subject: Subject) -> None:
    """Two forwards, then two backwards: as two layers, or two micro-batches, do."""
    both = [_known(subject, seed) for seed in (0, 1)]
    tensors = [leaves(found.inputs) for found in both]
    outputs = [subject.forward(*each) for each in tensors]
    for found, each, o in zip(both, tensors, outputs, strict=True):
        o.backward(found.inputs.do)
        results = {"o": o.detach()} | gradients(each)
        subject.numbers("gradients apart", results, found.exact, found.plain)


def _accumulated(subject: Subject) -> None:
    """Two backwards into the same gradients: they add up."""
    found = _known(subject, 0)
    tensors = leaves(found.inputs)
    for _ in range(2):
        subject.forward(*tensors).backward(found.inputs.do)
    subject.numbers("gradients add up", gradients(tensors), found.exact, found.plain, times=2)


def _unwatched(subject: Subject) -> None:
    """Without gradients: evaluation gives what training gives."""
    found = _known(subject, 0)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            o = subject.forward(found.inputs.q, found.inputs.k, found.inputs.v).clone()
        subject.numbers("without gradients", {"o": o}, found.exact, found.plain)


def _settings(subject: Subject) -> None:
    """Nothing else changes: random numbers, modes and settings are as before."""
    found = _known(subject, 0)
    before = _world(subject.case.device)
    call(subject, found.inputs)
    for name, value in _world(subject.case.device).items():
        same = torch.equal(value, before[name]) if isinstance(value, Tensor) else value == before[name]
        _unchanged(subject, name, same)


def _poisoned(subject: Subject) -> None:
    """Memory full of NaN: what is not written, or is multiplied by zero, shows."""
    found = _known(subject, 0)
    with poisoned(found.inputs.q, found.inputs.k):
        results = call(subject, found.inputs)
    subject.numbers("all written", results, found.exact, found.plain)


def _partly(subject: Subject) -> None:
    """Gradients for one input alone: frozen projections have none."""
    found = _known(subject, 0)
    for name in "qkv":
        results = call(subject, found.inputs, grads=name)
        subject.numbers("one gradient", results, found.exact, found.plain)


_HABITS: tuple[Callable[[Subject], None], ...] = (
    _again, _in_place, _interleaved, _accumulated, _unwatched, _settings, _poisoned, _partly
)  # fmt: skip


def settings() -> dict[str, Any]:
    """Of the whole process: what a backend has no business to change."""
    cuda = torch.backends.cuda
    return {
        "gradient mode": torch.is_grad_enabled(),
        "the default dtype": torch.get_default_dtype(),
        "the number of threads": torch.get_num_threads(),
        "float32 matmul precision": torch.get_float32_matmul_precision(),
        "determinism": torch.are_deterministic_algorithms_enabled(),
        "SDPA's kernels": (
            cuda.flash_sdp_enabled(),
            cuda.mem_efficient_sdp_enabled(),
            cuda.math_sdp_enabled(),
            cuda.cudnn_sdp_enabled(),
        ),
    }


def unchanged(backend: Backend, case: Case, before: dict[str, Any]) -> list[Check]:
    """Whether the settings are as before the first call of the trial."""
    subject = Subject(backend, case, "after all calls")
    for name, value in settings().items():
        _unchanged(subject, name, value == before[name])
    return subject.checks


def _unchanged(subject: Subject, name: str, same: bool) -> None:
    subject.note("settings unchanged", name, same, f"a call changed {name} of the whole process")


def _world(device: str) -> dict[str, Any]:
    world = settings() | {"the random state": torch.get_rng_state()}
    if device == "cuda":
        world["the GPU's random state"] = torch.cuda.get_rng_state()
        world["the current stream"] = torch.cuda.current_stream()
    return world
