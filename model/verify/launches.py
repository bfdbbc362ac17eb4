"""Which kernels a backend really runs: what the profiler sees, compared with what the backend declares."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch._C._autograd import DeviceType

from model import attention
from model.attention import Backend, Case, Kernels
from model.errors import UserError
from model.measure.profiler import watched
from model.verify import data
from model.verify.call import PULL, Subject, call, gradients, leaves, pull
from model.verify.cases import Variant
from model.verify.certificate import Check
from model.verify.data import Known

PASSES = ("forward", "backward")
FREE = "auto"  # the one backend whose name promises no kernel of its own
PYTORCH = ("math", "flash", "efficient", "cudnn")  # those it may choose from
_COPIES = ("Memcpy", "Memset")
# What a pass may spend on anything but its declared kernels, even if they take less: preparing a call costs
# something, which dominates at tiny shapes.
_ALLOWED_SECONDS = {"cpu": 5e-4, "cuda": 1e-4}
_SHARE = 0.5
_TIMINGS = 3  # the best of them counts: on a busy machine, a pause may fall between the kernels
_WHAT_TO_ADD = (
    "add launches=Launches(cuda=Kernels(forward=..., backward=...)) to its Backend, with regular expressions "
    "for the names that torch.profiler shows (docs/backends.md)"
)


@dataclass
class Seen:
    """The names seen in one pass: of PyTorch's operators and autograd functions, and of GPU kernels.

    Attributes:
        events: of the last call only.
    """

    operators: set[str] = field(default_factory=set)
    kernels: set[str] = field(default_factory=set)
    events: list[Any] = field(default_factory=list)

    def seconds(self, wanted: Kernels, pattern: str, device: str) -> tuple[float, float]:
        """How long what matches took, with all that it called, and how long everything took."""
        if device == "cuda" and not wanted.operators:
            events = [x for x in self.events if x.device_type == DeviceType.CUDA]
            took = [(x, x.time_range.elapsed_us()) for x in events]
            return sum(t for x, t in took if re.search(pattern, x.name)) / 1e6, sum(t for _, t in took) / 1e6
        kind = "device_time_total" if device == "cuda" else "cpu_time_total"
        called = [x for x in self.events if x.device_type != DeviceType.CUDA]
        matching = [x for x in called if re.search(pattern, x.name)]
        inner = {id(each) for x in matching for each in _below(x)}
        mine = sum(getattr(x, kind) for x in matching if id(x) not in inner)
        return mine / 1e6, sum(getattr(x, kind) for x in called if x.cpu_parent is None) / 1e6

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
    seen = {each: Seen() for each in _passes(case)}
    with subject.running("under the profiler"):
        alone = [call(subject, found.inputs) for _ in range(2)]  # the first also compiles
        watched = _profiled(subject, found, seen)
        for each in (*alone, watched):
            subject.numbers("right when watched", each, found.exact, found.plain)
        _same_unwatched(subject, found, alone, watched, seen)
        _judge(name, subject, wanted, seen)
        if wanted:
            _share(subject, found, wanted, seen)
    return subject.checks, {each: sorted(seen[each].of(case.device)) for each in seen}


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
    for each, here in seen.items():
        some = bool(here.of(device))
        reason = (
            f"the profiler sees no kernel in the {each}: nothing is computed there, or, if it sees none "
            "for any backend, this machine does not permit tracing (CUPTI)"
        )
        subject.note("kernels", each, some, reason)
        if wanted:
            pattern = getattr(wanted, each)
            names = here.named(wanted, device)
            reason = f"no kernel in its {each} matches {pattern!r}; it runs {_some(names)}"
            subject.note("own kernels", each, any(re.search(pattern, x) for x in names), reason)
    if _is_free(name, subject):
        _one_of_pytorchs(subject, seen)
    for other, theirs in _others(name, subject):
        for each, here in seen.items():
            taken = sorted(x for x in here.named(theirs, device) if _claims(theirs, x))
            reason = (
                f"its {each} runs {_some(taken)}, which belongs to {other}: call it {other}, or run your own"
            )
            subject.note("no other's kernels", f"{each}: {other}", not taken, reason)


def _is_free(name: str, subject: Subject) -> bool:
    """Whether it may run any of PyTorch's kernels."""
    launches = subject.backend.launches
    return name == FREE and launches is not None and launches.free


def _share(subject: Subject, found: Known, wanted: Kernels, seen: dict[str, Seen]) -> None:
    """Check that the declared kernels do the work: one that computes a single number proves nothing."""
    device, left = subject.case.device, [each for each in seen if _is_named(each, wanted)]
    for attempt in range(_TIMINGS):
        if attempt:
            _profiled(subject, found, again := {each: Seen() for each in seen})
        for each in list(left):
            there = again[each] if attempt else seen[each]
            mine, all_seconds = there.seconds(wanted, getattr(wanted, each), device)
            others, last = all_seconds - mine, attempt == _TIMINGS - 1
            enough = mine >= _SHARE * all_seconds or others <= _ALLOWED_SECONDS[device]
            if enough or last:
                left.remove(each)
                reason = (
                    f"what it declares takes {mine * 1e3:.3g} of the {all_seconds * 1e3:.3g} ms "
                    f"of its {each}, so something else does the work: declare that"
                )
                subject.note("kernels do the work", each, enough, reason)
        if not left:
            return


def _is_named(each: str, wanted: Kernels) -> bool:
    """Whether what is declared does the work: a backward of common operators names only one of them."""
    return each == "forward" or not wanted.common_backward


def _below(event: Any) -> Iterator[Any]:
    for child in event.cpu_children:
        yield child
        yield from _below(child)


def _one_of_pytorchs(subject: Subject, seen: dict[str, Seen]) -> None:
    device = subject.case.device
    theirs = [(name, kernels) for name in PYTORCH if (kernels := _kernels(name, device))]
    for each, here in seen.items():
        ran = any(
            re.search(getattr(kernels, each), x) for _, kernels in theirs for x in here.named(kernels, device)
        )
        reason = f"no kernel in its {each} is one of PyTorch's; it runs {_some(here.of(device))}"
        subject.note("own kernels", each, ran, reason)


def _others(name: str, subject: Subject) -> Iterator[tuple[str, Kernels]]:
    """This project's other backends. `auto` may run PyTorch's, which it chooses from.

    Those of other packages do not count: anybody can declare anything, which must not forbid ours.
    """
    free = _is_free(name, subject)
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


def _same_unwatched(
    subject: Subject,
    found: Known,
    alone: list[dict[str, Tensor]],
    watched: dict[str, Tensor],
    seen: dict[str, Seen],
) -> None:
    """Check that the same runs without the profiler: results must be equal if those of two calls are.

    Another kernel rounds differently. Atomic additions sometimes do too, so a difference is tried again.
    """
    for step, x in watched.items():
        first, second = (each.get(step) for each in alone)
        if first is None or second is None or not torch.equal(first, second):
            continue
        same = torch.equal(first, x) or _by_chance(subject, found, step, x, seen)
        reason = f"{step} differs under the profiler: something else runs then"
        subject.note("same when watched", step, same, reason)


def _by_chance(subject: Subject, found: Known, step: str, watched: Tensor, seen: dict[str, Seen]) -> bool:
    """Whether additions in another order explain what the profiler saw.

    They do if one of five calls without the profiler gives the same, if these differ among themselves, or if
    the profiler sees the same kernels give what these give: where others use the GPU too, a kernel can be
    interrupted once, and its additions come in their usual order in all other calls.
    """
    again = [x for x in (call(subject, found.inputs).get(step) for _ in range(5)) if x is not None]
    if any(torch.equal(x, watched) for x in again) or any(not torch.equal(x, again[0]) for x in again):
        return True
    device, now = subject.case.device, {each: Seen() for each in seen}
    once_more = _profiled(subject, found, now).get(step)
    same_kernels = all(now[each].of(device) == seen[each].of(device) for each in seen)
    return same_kernels and once_more is not None and any(torch.equal(x, once_more) for x in again)


def _profiled(subject: Subject, found: Known, seen: dict[str, Seen]) -> dict[str, Tensor]:
    device = subject.case.device
    tensors = leaves(found.inputs, "qkv" if "backward" in seen else "")
    o = _watch(device, seen["forward"], lambda: subject.forward(*tensors))
    result = {"o": o.detach().clone()}
    if o.requires_grad:
        _watch(device, seen["backward"], lambda: pull(o, found.inputs.do))
    return result | gradients(tensors)


def _passes(case: Case) -> tuple[str, ...]:
    """Nothing trains by calls for decoded tokens."""
    return PASSES if case.trains else PASSES[:1]


def _watch(device: str, seen: Seen, work: Callable[[], Any]) -> Any:
    """Run it under the profiler. Names that code gives to its own regions prove nothing."""
    result, events = watched(device, work)
    for event in events:
        named_by_code = getattr(event, "is_user_annotation", False)
        if named_by_code or event.name in PULL or event.name.startswith(_COPIES):
            continue
        seen.events.append(event)
        if event.device_type == DeviceType.CUDA:
            seen.kernels.add(event.name)
        elif not event.name.startswith("autograd::engine"):
            seen.operators.add(event.name)
    return result
