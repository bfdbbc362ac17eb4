"""Which kernels a backend really runs: what the profiler sees, compared with what the backend declares."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch._C._autograd import DeviceType

from model import attention
from model.attention import Backend, Case, Kernels
from model.attention.verify import data
from model.attention.verify.call import PULL, Subject, call, gradients, leaves, pull
from model.attention.verify.certificate import Check, describe
from model.attention.verify.data import SolvedCall
from model.measure.flops import attention_flop
from model.measure.profiler import is_annotation, watched
from model.record import backends
from model.record.errors import UserError
from model.record.kernels import Direction

PASSES: tuple[Direction, ...] = ("forward", "backward")
FREE = "auto"  # the one backend whose name promises no kernel of its own
PYTORCH = ("math", "flash", "efficient", "cudnn")  # those it may choose from
# Only those can have such names for themselves: whoever else declares `aten::matmul` shares it.
_OF_PYTORCH = re.compile(r"^(aten::|torch::autograd::\w+$|\w+Backward\d+$|(void )?at::native::)")
_COPIES = ("Memcpy", "Memset")
_SHARE = 0.5  # of the operations of a pass: what the declared kernels must do
# Of its time, where operations cannot be counted: on a CPU the times of short calls are off by half.
_SHARE_OF_TIME = {"cpu": 0.25, "cuda": 0.5}
# What a pass may spend on anything but its declared kernels, even if they do less: preparing a call costs
# something, which dominates at tiny shapes. Operations: as many passes over q, k, v and o.
_ALLOWED_PASSES = 16
_ALLOWED_SECONDS = {"cpu": 1e-3, "cuda": 1e-4}
# A call is timed until the least times have not fallen by more than this share in so many calls.
_FALL = 0.05
_STEADY = 10
_MOST_LOOKS = 60
# What autograd adds to a call, and what the seam does where processes share a sample's tokens.
_AROUND = re.compile(
    r"^(autograd::engine::.*|torch::autograd::\w+|\w+Backward\d+|detach|_(Pull|Shared)(Backward)?)$"
)
_VIEWS = re.compile(
    r"^aten::(as_strided|alias|detach|expand|flatten|lift_fresh|m?T|narrow|permute|resolve_\w+|select|slice"
    r"|split\w*|squeeze|t|transpose|unbind|unflatten|unsafe_\w+|unsqueeze|_?(unsafe_)?view\w*|_reshape_alias|(new_)?empty\w*)_?$"
)
_UNCOUNTED = re.compile(r"mm|attention|conv|linalg|fft|dist|rnn|lstm|gru|mkl")  # and no FLOP by the profiler
_WHAT_TO_ADD = (
    "add launches=Launches(cuda=Kernels(forward=..., backward=...)) to its Backend, with regular expressions "
    "for the names that torch.profiler shows (docs/backends.md)"
)


@dataclass
class SeenNames:
    """The names seen in one pass: of PyTorch's operators and autograd functions, and of GPU kernels.

    Attributes:
        events: of the last call only.
    """

    operators: set[str] = field(default_factory=set)
    kernels: set[str] = field(default_factory=set)
    events: list[Any] = field(default_factory=list)

    def names_for(self, wanted: Kernels, device: str) -> set[str]:
        """The names that a declaration is about."""
        return self.operators if wanted.operators or device == "cpu" else self.kernels

    def names_on(self, device: str) -> set[str]:
        """The names of what did the work."""
        return self.operators if device == "cpu" else self.kernels


@dataclass
class Work:
    """The work of a pass's operators: FLOP of matrix products, and elements that others read.

    Attributes:
        declared: of those that are declared, and of all that they call.
        others: of all others.
        hidden: the operators among `declared` and `others` whose work cannot be counted.
        explained: number of matrix products and declared operators met: what calls one only frames it.
    """

    declared: float = 0.0
    others: float = 0.0
    hidden: dict[bool, set[str]] = field(default_factory=lambda: {True: set(), False: set()})
    explained: int = 0

    @classmethod
    def counted(cls, events: Iterable[Any], pattern: str) -> Work:
        """Count what these events of the profiler did.

        Args:
            pattern: a regular expression for the names of what is declared.
        """
        work = cls()
        work.others = sum(work._count(x, pattern, declared=False) for x in events if x.cpu_parent is None)
        return work

    def _count(self, event: Any, pattern: str, declared: bool) -> float:
        """Count an event and all below it; what is declared among them is added to `declared`."""
        if not declared and _is_declared(event, pattern):
            self.declared += self._count(event, pattern, declared=True)
            self.explained += 1
            return 0.0
        before = self.explained
        below = sum(self._count(x, pattern, declared) for x in event.cpu_children)
        if is_annotation(event) or _AROUND.search(event.name) or _VIEWS.search(event.name):
            return below
        if event.flops and event.name.endswith("mm"):
            self.explained += 1
            return float(event.flops)
        if not event.name.startswith("aten::"):
            self.hidden[declared].add(event.name)
            return below
        if _UNCOUNTED.search(event.name):
            if self.explained == before:
                self.hidden[declared].add(event.name)
            return below
        # The elements that it computes, one for all that meet in it.
        shapes = [tuple(x) for x in event.input_shapes if x and all(isinstance(n, int) for n in x)]
        try:
            elements = prod(torch.broadcast_shapes(*shapes)) if shapes else 0
        except RuntimeError:
            elements = max(map(prod, shapes))
        return max(below, float(elements))


def _is_declared(event: Any, pattern: str) -> bool:
    """Whether the event's name is declared; names that code gives to its own regions prove nothing."""
    return not is_annotation(event) and bool(re.search(pattern, event.name))


def check(
    name: str, backend: Backend, case: Case, untold: list[str] | None = None
) -> tuple[list[Check], dict[str, list[str]]]:
    """Profile a call; the checks, and the names seen by pass.

    Args:
        untold: receives what could not be told on a busy machine.
    """
    subject = Subject(backend, case, "profiled")
    wanted = None  # only `auto` may leave its kernels open
    if backend.launches.free:
        reason = f"only `{FREE}` may leave open which kernels it runs: {_WHAT_TO_ADD}"
        subject.note("declared", "launches", name == FREE, reason)
    else:
        wanted = backend.launches.on(case.device)
        reason = f"declares no kernels for device '{case.device}': {_WHAT_TO_ADD}"
        subject.note("declared", "launches", wanted is not None, reason)
    solved = data.solved_call(subject.of_case())
    seen: dict[str, SeenNames] = {direction: SeenNames() for direction in _passes(case)}
    with subject.running("under the profiler"):
        alone = [call(subject, solved.inputs) for _ in range(2)]  # the first also compiles
        watched = _profiled(subject, solved, seen)
        for results in (*alone, watched):
            subject.numbers("right when watched", results, solved.exact, solved.plain)

        # The same must run without the profiler: results must be equal if those of two calls are. Another
        # kernel rounds differently. Atomic additions sometimes do too, so a difference is tried again.
        for step, x in watched.items():
            first, second = (results.get(step) for results in alone)
            if first is None or second is None or not torch.equal(first, second):
                continue
            same = torch.equal(first, x) or _by_chance(subject, solved, step, x, seen)
            reason = f"{step} differs under the profiler: something else runs then"
            subject.note("same when watched", step, same, reason)

        _judge(name, subject, wanted, seen)
        if wanted:
            _share(subject, solved, wanted, seen, [] if untold is None else untold)
    return subject.checks, {
        direction: sorted(names.names_on(case.device)) for direction, names in seen.items()
    }


def _judge(name: str, subject: Subject, wanted: Kernels | None, seen: dict[str, SeenNames]) -> None:
    """Check the names: some kernel runs in each pass, the declared ones do, and no other backend's does."""
    device = subject.case.device
    for direction, here in seen.items():
        ran = bool(here.names_on(device))
        reason = (
            f"the profiler sees no kernel in the {direction}: nothing is computed there, or, if it sees none "
            "for any backend, this machine does not permit tracing (CUPTI)"
        )
        subject.note("kernels", direction, ran, reason)
        if wanted:
            pattern = getattr(wanted, direction)
            names = here.names_for(wanted, device)
            reason = f"no kernel in its {direction} matches {pattern!r}; it runs {_listed(names)}"
            subject.note("own kernels", direction, any(re.search(pattern, x) for x in names), reason)

    free = name == FREE and subject.backend.launches.free
    if free:
        of_pytorch = [kernels for choice in PYTORCH if (kernels := _kernels(choice, device))]
        for direction, here in seen.items():
            ran = any(
                re.search(getattr(kernels, direction), x)
                for kernels in of_pytorch
                for x in here.names_for(kernels, device)
            )
            names = here.names_on(device)
            reason = f"no kernel in its {direction} is one of PyTorch's; it runs {_listed(names)}"
            subject.note("own kernels", direction, ran, reason)

    # `auto` may run PyTorch's kernels, which it chooses from. Backends of other packages do not count:
    # anybody can declare anything, which must not forbid ours.
    for other in backends.names():
        if other == name or backends.is_foreign(other) or (free and other in PYTORCH):
            continue
        theirs = _kernels(other, device)
        if not theirs:
            continue
        for direction, here in seen.items():
            names = here.names_for(theirs, device)
            taken = [
                x
                for x in sorted(filter(theirs.claims, names))
                if other in PYTORCH or not _OF_PYTORCH.search(x)
            ]
            reason = (
                f"its {direction} runs {_listed(taken)}, which {other} declares for itself: call it {other}, "
                f"run your own, or let {other} declare less"
            )
            subject.note("no other's kernels", f"{direction}: {other}", not taken, reason)


def _share(
    subject: Subject, solved: SolvedCall, wanted: Kernels, seen: dict[str, SeenNames], untold: list[str]
) -> None:
    """Check that the declared kernels do the work: one that computes a single number proves nothing.

    Operations of PyTorch's operators are counted, which a busy machine cannot change. What cannot be counted
    (a GPU's kernels, operators of other packages) is timed, again and again.
    """
    device, timed = subject.case.device, dict[str, set[str]]()
    for direction in _passes(subject.case):
        if direction == "backward" and wanted.common_backward:
            continue  # what is declared names only one of its operators
        if device == "cuda" and not wanted.operators:
            timed[direction] = set()
            continue
        work = Work.counted(seen[direction].events, getattr(wanted, direction))
        needed = sum(attention_flop(part, direction) for part in subject.case.parts or [subject.case])
        own = max(work.declared, _SHARE * needed) if work.hidden[True] else work.declared
        inputs = solved.inputs
        allowed = _ALLOWED_PASSES * sum(x.numel() for x in (inputs.q, inputs.k, inputs.v, inputs.do))
        enough = work.others <= max(own, allowed)
        if enough and work.hidden[False]:
            timed[direction] = work.hidden[False]
            continue
        reason = (
            f"what it declares does {work.declared:.3g} operations of its {direction}, and what it does not "
            f"declare {work.others:.3g}, so something else does the work: declare that"
        )
        subject.note("kernels do the work", direction, enough, reason)
    if timed:
        _share_of_time(subject, solved, wanted, timed, untold)


def _share_of_time(
    subject: Subject, solved: SolvedCall, wanted: Kernels, passes: Mapping[str, set[str]], untold: list[str]
) -> None:
    """Judge by time. Other work on the machine only adds to a time, so the least of each kernel's counts.

    If the times do not settle, nothing is said.

    Args:
        passes: for each that is judged, the operators that are not declared and cannot be counted.
    """
    device = subject.case.device
    on_gpu = device == "cuda" and not wanted.operators
    least = {direction: dict[tuple[str, int, bool], float]() for direction in passes}
    sums, steady = dict[tuple[str, bool], float](), 0
    for _ in range(_MOST_LOOKS):
        seen: dict[str, SeenNames] = {direction: SeenNames() for direction in _passes(subject.case)}
        _profiled(subject, solved, seen)
        for direction, times in least.items():
            for place, seconds in _times(
                seen[direction].events, getattr(wanted, direction), passes[direction], on_gpu
            ):
                times[place] = min(seconds, times.get(place, seconds))
        before = sums
        sums = {
            (direction, own): sum(x for place, x in times.items() if place[2] == own)
            for direction, times in least.items()
            for own in (True, False)
        }
        settled = all(x >= (1 - _FALL) * before.get(place, float("inf")) for place, x in sums.items())
        steady = steady + 1 if settled else 0
        if steady == _STEADY:
            break
    for direction in passes:
        own, others = sums[direction, True], sums[direction, False]
        enough = own >= _SHARE_OF_TIME[device] * (own + others) or others <= _ALLOWED_SECONDS[device]
        if steady < _STEADY:
            untold.append(
                f"{describe(subject.case)}: whether the declared kernels do the work of the {direction}, "
                f"because the machine is so busy that their times did not settle in {_MOST_LOOKS} calls"
            )
            continue
        reason = (
            f"what it declares takes {own * 1e3:.3g} of the {(own + others) * 1e3:.3g} ms of its "
            f"{direction}, the least that each of its kernels took, so something else does the work: "
            "declare that"
        )
        subject.note("kernels do the work", direction, enough, reason)


def _times(
    events: Iterable[Any], pattern: str, uncounted: set[str], on_gpu: bool
) -> Iterator[tuple[tuple[str, int, bool], float]]:
    """Seconds of each event alone, by its name, its place among those so named, and whether it is declared.

    On a GPU these are its kernels. Elsewhere they are the operators that are declared, with all that they
    call, and the `uncounted`; others are judged by their operations.
    """
    met = Counter[str]()
    for event in events:
        if (event.device_type == DeviceType.CUDA) != on_gpu or event.name in PULL:
            continue
        if on_gpu and (is_annotation(event) or event.name.startswith(_COPIES)):
            continue
        callers, caller = [event], event
        while (caller := caller.cpu_parent) is not None:
            callers.append(caller)
        declared = any(_is_declared(x, pattern) for x in callers)
        if not (on_gpu or declared or event.name in uncounted):
            continue
        # An operator counts without those that it calls, but with the kernels that it starts.
        microseconds = (
            event.time_range.elapsed_us()
            if on_gpu
            else event.self_cpu_time_total + getattr(event, "self_device_time_total", 0)
        )
        met[event.name] += 1
        yield (event.name, met[event.name], declared), microseconds / 1e6


def _kernels(name: str, device: str) -> Kernels | None:
    try:
        return attention.load(name).launches.on(device)
    except (UserError, ImportError):  # its own certificate will say so
        return None


def _listed(names: set[str] | list[str]) -> str:
    shown = [name[:120] for name in sorted(names)[:6]]
    return ", ".join(shown) + (f" and {len(names) - 6} more" if len(names) > 6 else "") or "nothing"


def _by_chance(
    subject: Subject, solved: SolvedCall, step: str, watched: Tensor, seen: dict[str, SeenNames]
) -> bool:
    """Whether additions in another order explain what the profiler saw.

    They do if one of five calls without the profiler gives the same, if these differ among themselves, or if
    the profiler sees the same kernels give what these give: where others use the GPU too, a kernel can be
    interrupted once, and its additions come in their usual order in all other calls.
    """
    again = [x for x in (call(subject, solved.inputs).get(step) for _ in range(5)) if x is not None]
    if any(torch.equal(x, watched) for x in again) or any(not torch.equal(x, again[0]) for x in again):
        return True
    device, now = subject.case.device, {direction: SeenNames() for direction in seen}
    once_more = _profiled(subject, solved, now).get(step)
    same_kernels = all(
        now[direction].names_on(device) == seen[direction].names_on(device) for direction in seen
    )
    return same_kernels and once_more is not None and any(torch.equal(x, once_more) for x in again)


def _profiled(subject: Subject, solved: SolvedCall, seen: dict[str, SeenNames]) -> dict[str, Tensor]:
    device = subject.case.device
    tensors = leaves(solved.inputs, "qkv" if "backward" in seen else "")
    scales = solved.inputs.scales_3BK
    q, k, v = tensors
    o = _watch(device, seen["forward"], lambda: subject.forward(q, k, v, scales))
    result = {"o": o.detach().clone()}
    if o.requires_grad:
        _watch(device, seen["backward"], lambda: pull(o, solved.inputs.do))
    return result | gradients(tensors)


def _passes(case: Case) -> tuple[Direction, ...]:
    """Nothing trains by calls for decoded tokens."""
    return PASSES if case.trains else PASSES[:1]


def _watch(device: str, seen: SeenNames, work: Callable[[], Any]) -> Any:
    """Run it under the profiler. Names that code gives to its own regions prove nothing."""
    result, seen.events = watched(device, work, shapes=True)
    for event in seen.events:
        if is_annotation(event) or event.name in PULL or event.name.startswith(_COPIES):
            continue
        if event.device_type == DeviceType.CUDA:
            seen.kernels.add(event.name)
        elif not event.name.startswith("autograd::engine"):
            seen.operators.add(event.name)
    return result
