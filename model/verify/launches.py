"""Which kernels a backend really runs: what the profiler sees, compared with what the backend declares."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from model import attention
from model.attention import Backend, Case, Kernels
from model.errors import UserError
from model.verify import data
from model.verify.call import Subject, call, gradients, leaves
from model.verify.cases import Variant
from model.verify.certificate import Check
from model.verify.data import Known

PASSES = ("forward", "backward")
FREE = "auto"  # the one backend whose name promises no kernel of its own
PYTORCH = ("math", "flash", "efficient", "cudnn")  # those it may choose from
_COPIES = ("Memcpy", "Memset")
_WHAT_TO_ADD = (
    "add launches=Launches(cuda=Kernels(forward=..., backward=...)) to its Backend, with regular expressions "
    "for the names that torch.profiler shows (docs/backends.md)"
)


@dataclass
class Seen:
    """The names seen in one pass: PyTorch's operators and autograd functions, and GPU kernels."""

    operators: set[str] = field(default_factory=set)
    kernels: set[str] = field(default_factory=set)

    def named(self, wanted: Kernels, device: str) -> set[str]:
        """The names that a declaration is about."""
        return self.operators if wanted.operators or device == "cpu" else self.kernels

    def of(self, device: str) -> set[str]:
        """The names of what did the work."""
        return self.operators if device == "cpu" else self.kernels


def check(name: str, backend: Backend, case: Case) -> tuple[list[Check], dict[str, list[str]]]:
    """Profile a call; the checks, and the names seen by pass."""
    subject = Subject(backend, case, "profiled")
    wanted = _declared(name, subject)
    found = data.of(Variant(case))
    seen = {each: Seen() for each in PASSES}
    with subject.running("under the profiler"):
        alone = _repeated(subject, found)
        watched = _profiled(subject, found, seen)
        subject.numbers("right when watched", watched, found.exact, found.plain)
        _same_unwatched(subject, found, alone, watched)
        _judge(name, subject, wanted, seen)
    return subject.checks, {each: sorted(seen[each].of(case.device)) for each in PASSES}


def _declared(name: str, subject: Subject) -> Kernels | None:
    """What the backend declares; only `auto` may leave it open."""
    launches, device = subject.backend.launches, subject.case.device
    if launches is None:
        subject.note(
            "declared", "launches", False, f"does not declare the kernels that it runs: {_WHAT_TO_ADD}"
        )
        return None
    if launches.free:
        reason = f"only `{FREE}` may leave open which kernels it runs: {_WHAT_TO_ADD}"
        subject.note("declared", "launches", name == FREE, reason)
        return None
    wanted = launches.on(device)
    reason = f"declares no kernels for device '{device}': {_WHAT_TO_ADD}"
    subject.note("declared", "launches", wanted is not None, reason)
    return wanted


def _judge(name: str, subject: Subject, wanted: Kernels | None, seen: dict[str, Seen]) -> None:
    device = subject.case.device
    for each in PASSES:
        some = bool(seen[each].of(device))
        reason = (
            f"the profiler sees no kernel in the {each}: nothing is computed there, or, if it sees none "
            "for any backend, this machine does not permit tracing (CUPTI)"
        )
        subject.note("kernels", each, some, reason)
        if wanted:
            pattern = getattr(wanted, each)
            names = seen[each].named(wanted, device)
            reason = f"no kernel in its {each} matches {pattern!r}; it runs {_some(names)}"
            subject.note("own kernels", each, any(re.search(pattern, x) for x in names), reason)
    if name == FREE and (launches := subject.backend.launches) and launches.free:
        _one_of_pytorchs(subject, seen)
    for other, theirs in _others(name, subject):
        for each in PASSES:
            taken = sorted(x for x in seen[each].named(theirs, device) if _claims(theirs, x))
            reason = (
                f"its {each} runs {_some(taken)}, which belongs to {other}: call it {other}, or run your own"
            )
            subject.note("no other's kernels", f"{each}: {other}", not taken, reason)


def _one_of_pytorchs(subject: Subject, seen: dict[str, Seen]) -> None:
    device = subject.case.device
    theirs = [(name, kernels) for name in PYTORCH if (kernels := _kernels(name, device))]
    for each in PASSES:
        ran = any(
            re.search(getattr(kernels, each), x)
            for _, kernels in theirs
            for x in seen[each].named(kernels, device)
        )
        reason = f"no kernel in its {each} is one of PyTorch's; it runs {_some(seen[each].of(device))}"
        subject.note("own kernels", each, ran, reason)


def _others(name: str, subject: Subject) -> Iterator[tuple[str, Kernels]]:
    """This project's other backends. `auto` may run PyTorch's, which it chooses from.

    Those of other packages do not count: anybody can declare anything, which must not forbid ours.
    """
    free = name == FREE and subject.backend.launches is not None and subject.backend.launches.free
    for other in attention.names():
        if other == name or attention.is_foreign(other) or (free and other in PYTORCH):
            continue
        if theirs := _kernels(other, subject.case.device):
            yield other, theirs


def _kernels(name: str, device: str) -> Kernels | None:
    try:
        launches = attention.load(name).launches
    except (UserError, ImportError):  # its own certificate will say so
        return None
    return launches.on(device) if launches else None


def _claims(theirs: Kernels, seen: str) -> bool:
    patterns = [theirs.forward] if theirs.common_backward else [theirs.forward, theirs.backward]
    return any(re.search(pattern, seen) for pattern in patterns)


def _some(names: set[str] | list[str]) -> str:
    shown = [name[:120] for name in sorted(names)[:6]]
    return ", ".join(shown) + (f" and {len(names) - 6} more" if len(names) > 6 else "") or "nothing"


def _repeated(subject: Subject, found: Known) -> list[dict[str, Tensor]]:
    """Two calls without the profiler; the first also compiles whatever is compiled."""
    return [call(subject, found.inputs) for _ in range(2)]


def _same_unwatched(
    subject: Subject, found: Known, alone: list[dict[str, Tensor]], watched: dict[str, Tensor]
) -> None:
    """What the profiler saw is what runs without it: to the bit, where two calls agree to the bit.

    Another kernel rounds differently. So do atomic additions now and then, so a difference is tried again.
    """
    for step, x in watched.items():
        first, second = (each.get(step) for each in alone)
        if first is None or second is None or not torch.equal(first, second):
            continue
        same = torch.equal(first, x) or _differs_again(subject, found, step, x)
        reason = f"{step} differs under the profiler: something else runs then"
        subject.note("same when watched", step, same, reason)


def _differs_again(subject: Subject, found: Known, step: str, watched: Tensor) -> bool:
    """Whether one of five calls without the profiler gives what it saw, or these differ among themselves."""
    again = [x for x in (call(subject, found.inputs).get(step) for _ in range(5)) if x is not None]
    return any(torch.equal(x, watched) for x in again) or any(not torch.equal(x, again[0]) for x in again)


def _profiled(subject: Subject, found: Known, seen: dict[str, Seen]) -> dict[str, Tensor]:
    device = subject.case.device
    tensors = leaves(found.inputs)
    o = _watch(device, seen["forward"], lambda: subject.forward(*tensors))
    result = {"o": o.detach().clone()}
    if o.requires_grad:
        _watch(device, seen["backward"], lambda: o.backward(found.inputs.do))
    return result | gradients(tensors)


def _watch(device: str, seen: Seen, work: Callable[[], Any]) -> Any:
    """Run it under torch.profiler. Names that code gives to its own regions prove nothing."""
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device == "cuda")
    watching = profile(activities=activities)
    with _quiet():
        watching.__enter__()
    try:
        result = work()
        if device == "cuda":
            torch.cuda.synchronize()
    finally:
        with _quiet():
            watching.__exit__(None, None, None)
    for event in watching.events() or ():
        if getattr(event, "is_user_annotation", False) or event.name.startswith(_COPIES):
            continue
        if event.device_type == DeviceType.CUDA:
            seen.kernels.add(event.name)
        elif not event.name.startswith("autograd::engine"):
            seen.operators.add(event.name)
    return result


@contextmanager
def _quiet() -> Iterator[None]:
    """Some builds of the profiler write trace points to stderr when they start and stop."""
    kept = os.dup(2)
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123  a file descriptor is what is needed
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
