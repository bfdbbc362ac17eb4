"""One call of a backend through the seam, forward and backward, with checks that need no reference."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from model import attention
from model.attention import Backend, Case
from model.attention.verify.cases import Variant
from model.attention.verify.certificate import Check, describe
from model.attention.verify.numbers import compare
from model.attention.verify.reference import STEPS, Exact, Inputs
from model.record.errors import Unsupported, one_line, out_of_host_memory
from model.record.records import finite

_MEMORY = (
    *("out of memory", "can't allocate memory", "not enough memory", "cannot allocate memory"),
    *("storage size calculation overflowed", "integer multiplication overflow"),  # more than any memory
)


@dataclass
class Subject:
    """A backend on trial at one case, and the checks made so far.

    Attributes:
        variant: that of the next checks.
        seam: calls the backend.
    """

    backend: Backend
    case: Case
    variant: str = "plain"
    seam: Callable[..., Tensor] = attention.attend
    checks: list[Check] = field(default_factory=list)

    def note(self, name: str, what: str, passed: bool, reason: str, **measured: float) -> bool:
        """Add a check; the reason is kept only if it failed, and numbers only where they are finite."""
        self.checks.append(
            Check(
                name=name,
                what=what,
                case=describe(self.case),
                variant=self.variant,
                passed=passed,
                reason=None if passed else reason,
                **{field: finite(number) for field, number in measured.items()},
            )
        )
        return passed

    def of_case(self, **changes: Any) -> Variant:
        """A variant of its case, as the backend takes its numbers."""
        return Variant(self.case, fp8=self.backend.fp8 if self.case.fp8 else None, **changes)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, scales_3BK: Tensor | None = None) -> Tensor:
        """Call the backend through the seam."""
        scales = () if scales_3BK is None else (scales_3BK,)
        return self.seam(self.backend, self.case, q, k, v, *scales)

    @contextmanager
    def running(self, what: str) -> Iterator[None]:
        """A backend's exception is a failed check; running out of memory is not its fault."""
        try:
            yield
        except Unsupported:
            raise  # an honest answer, which sometimes only the kernel itself can give
        except Exception as error:
            if is_out_of_memory(error):
                raise
            self.note("runs", what, False, f"raised {one_line(error)}")

    def numbers(
        self, name: str, results: dict[str, Tensor], exact: Exact, plain: dict[str, Tensor], times: int = 1
    ) -> None:
        """Hold each result to the tolerance. `look` has checked shapes and precisions."""
        for step, x in results.items():
            if not self.note("finite", step, bool(x.isfinite().all()), f"{step} contains NaN or infinity"):
                continue
            error = compare(step, x, plain[step], exact, times)
            self.note(
                name,
                step,
                error.passed,
                f"{step} is {error.words} ({error.where}); its relative error is {error.relative:.2e}",
                measured=error.measured,
                tolerance=error.tolerance,
                relative_error=error.relative,
            )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a GPU or the host has run out of memory, also if only an allocator's message says so."""
    if isinstance(error, torch.OutOfMemoryError) or out_of_host_memory(error):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in _MEMORY)


def leaves(inputs: Inputs, grads: str = "qkv") -> list[Tensor]:
    """q, k and v as leaves, in their layout; those named in `grads` require gradients."""
    return [
        x.detach().requires_grad_(name in grads)
        for name, x in zip("qkv", (inputs.q, inputs.k, inputs.v), strict=True)
    ]


def pull(o: Tensor, do: Tensor) -> None:
    """`o.backward(do)`, without the import of sympy that it makes, which takes a second."""
    start: Tensor = _Pull.apply(o, do)
    start.backward()


class _Pull(torch.autograd.Function):
    """A number whose gradient for `o` is `do` itself, in its own memory and layout."""

    @staticmethod
    def forward(ctx: Any, o: Tensor, do: Tensor) -> Tensor:
        ctx.do = do
        return o.new_zeros(())

    @staticmethod
    def backward(ctx: Any, _one: Tensor) -> tuple[Tensor, None]:
        return ctx.do, None


PULL = ("_Pull", "_PullBackward")  # how the profiler sees it


def gradients(tensors: list[Tensor]) -> dict[str, Tensor]:
    """The gradients that have arrived, by step."""
    return {step: x.grad for step, x in zip(STEPS[1:], tensors, strict=True) if x.grad is not None}


def call(subject: Subject, inputs: Inputs, grads: str = "qkv") -> dict[str, Tensor]:
    """Call forward and backward, and check everything but the numbers; results by step, empty if unusable.

    For a decoded token, and with numbers of 8 bits, call forward only, in inference mode: nothing trains by
    such calls.
    """
    if not subject.case.trains:
        return _forward_alone(subject, inputs)
    results: dict[str, Tensor] = {}
    with subject.running("forward and backward"):
        tensors = leaves(inputs, grads)
        before = [x.clone() for x in (*tensors, inputs.do)]
        o = subject.forward(*tensors)
        sound = look(subject, "o", o, inputs.q)
        _own_memory(subject, o, [*tensors, inputs.do])
        results["o"] = o.detach().clone()
        if subject.note("has gradients", "o", o.requires_grad, "the output is detached from its inputs"):
            pull(o, inputs.do)
        results |= gradients(tensors)
        for name in grads:
            subject.note("has gradients", f"d{name}", f"d{name}" in results, f"no gradient reaches {name}")
        for step, like in zip(STEPS[1:], tensors, strict=True):
            sound &= step not in results or look(subject, step, results[step], like)
        after_o = torch.equal(o.detach(), results["o"]) or not results["o"].isfinite().all()
        subject.note("inputs unchanged", "o", bool(after_o), "the backward pass modified the output")
        for name, x, was in zip(("q", "k", "v", "do"), (*tensors, inputs.do), before, strict=True):
            subject.note("inputs unchanged", name, torch.equal(x, was), f"{name} was modified")
        return results if sound else {}
    return {}


def _forward_alone(subject: Subject, inputs: Inputs) -> dict[str, Tensor]:
    with subject.running("forward"), torch.inference_mode():
        tensors = {"q": inputs.q, "k": inputs.k, "v": inputs.v}
        if inputs.scales_3BK is not None:
            tensors["scales"] = inputs.scales_3BK
        before = {name: x.clone() for name, x in tensors.items()}
        o = subject.forward(*tensors.values())
        sound = look(subject, "o", o, inputs.q, inputs.dtype)
        _own_memory(subject, o, [*tensors.values()])
        for name, x in tensors.items():
            same = torch.equal(bits(x), bits(before[name]))
            subject.note("inputs unchanged", name, same, f"{name} was modified")
        return {"o": o.clone()} if sound else {}
    return {}


def bits(x: Tensor) -> Tensor:
    """A tensor that PyTorch can compare: of 8 bits it compares whole numbers alone."""
    return x.view(torch.uint8) if x.element_size() == 1 else x


def look(subject: Subject, step: str, x: Tensor, like: Tensor, dtype: torch.dtype | None = None) -> bool:
    """Check that shape, precision (if none is given) and device are the input's."""
    shape = tuple(x.shape) == tuple(like.shape)
    subject.note("shape", step, shape, f"{step} has shape {tuple(x.shape)}, not {tuple(like.shape)}")
    dtype = dtype or like.dtype
    same = x.dtype == dtype and x.device == like.device
    reason = f"{step} is {x.dtype} on {x.device}, not {dtype} on {like.device}"
    subject.note("precision", step, same, reason)
    return shape


def _own_memory(subject: Subject, o: Tensor, others: list[Tensor]) -> None:
    place = o.untyped_storage().data_ptr()
    shared = any(place == x.untyped_storage().data_ptr() for x in others)
    subject.note("own memory", "o", not shared, "the output shares its memory with an input")
