"""Where the time of a step goes: a few more steps of a run that has ended, some of them under the profiler.

For task inference, a step is a prefill, and tokens are decoded after it.

They come after the last timed step, when all results are on disk: the profiler can neither slow nor change
what the run reports, and the updates of these steps are not kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf
from statistics import fmean, median
from typing import Any, Protocol

import torch
from torch import Tensor
from torch._C._autograd import DeviceType
from torch.autograd.profiler import record_function

from model.attention import Kernels
from model.measure.parts import Piece, Span, split
from model.measure.profiler import is_annotation, wait, watched
from model.record.config import RunConfig
from model.record.speed import PartTime, Phase, StepProfile
from model.training.llama import Attend, Llama
from model.training.meter import clock, no_collector

MARK = "assay part: "  # unlike the names of operators, whose namespace is assay
_GLOO = "gloo:"  # what torch.distributed names its work on a CPU
_STEPS = {"cuda": 2, "cpu": 1}  # a step of a CPU can be long, and its first is like the others
_TIMES = {"step": 1, "decode": 8}  # more of them for decoding, as a token is short
_LAUNCH = (
    *("cudaLaunch", "cuLaunch", "cudaMemcpy", "cudaMemset", "cuMemcpy", "cuMemset", "cudaGraphLaunch"),
    *("hipLaunch", "hipExtLaunch", "hipModuleLaunch", "hipExtModuleLaunch", "hipMemcpy", "hipMemset"),
    "hipGraphLaunch",
)


@dataclass(frozen=True)
class Work:
    """One more step, or one more decoded token of each sample.

    Attributes:
        timed: does it as the run did.
        launched: does it without CUDA graphs, which hide where each kernel was launched.
    """

    timed: Callable[[], None]
    launched: Callable[[], None]


class Done(Protocol):
    """A run after its last step, which can do more steps."""

    config: RunConfig
    model: Llama

    @property
    def phases(self) -> dict[Phase, Work]:
        """What it can do more of."""


def mark(name: str) -> record_function:
    """Surround a part of a step, so that its time is told apart."""
    return record_function(f"{MARK}{name}")


@no_collector()
def profiled(done: Done, run_id: str, attempt: int, kernels: Kernels | None) -> StepProfile:
    """Do the steps, and split their time.

    Args:
        kernels: of the run's backend, as it declares them.
    """
    device, on_gpu = done.config.device, done.config.device == "cuda"
    # All of them before the first mark, as each costs the host a little.
    unwatched = {
        phase: median(_timed(device, work.timed, 2 * _count(phase, device) + 1))
        for phase, work in done.phases.items()
        if on_gpu
    }
    phases = {phase: _profiled(done, phase, kernels, unwatched.get(phase)) for phase in done.phases}
    return StepProfile(
        run_id=run_id,
        attempt=attempt,
        steps=_count("step", device),
        step_seconds=phases["step"][0],
        parts=[
            part.model_copy(update={"phase": phase}) for phase, (_, parts) in phases.items() for part in parts
        ],
    )


def _count(phase: Phase, device: str) -> int:
    return _STEPS[device] * _TIMES[phase]


def _profiled(
    done: Done, phase: Phase, kernels: Kernels | None, unwatched: float | None
) -> tuple[float, list[PartTime]]:
    """Seconds of a step, and its parts.

    Args:
        unwatched: seconds of a step without the profiler; None on a CPU.
    """
    device, compiles = done.config.device, done.config.train.compile or done.config.inference.compile
    unmarked = compiles and phase == "step"  # in compiled blocks, kernels are told by their names alone
    steps, work = _count(phase, device), done.phases[phase].launched
    _mark(done.model, inside=compiles == (phase == "decode"))  # once
    if unwatched is not None:
        watched(device, work)  # the first time, the tracer starts

    def steps_after_a_mark() -> float:
        # The profilers of several processes do not start together, so they wait for each other in a step.
        if done.config.processes > 1:
            work()
            wait(device)
        _note("counted")
        return fmean(_timed(device, work, steps))

    slowed, seen = watched(device, steps_after_a_mark)
    events = counted(seen)
    seconds = slowed if unwatched is None else unwatched
    pieces = _operators(events) if unwatched is None else _kernels(events)
    names = f"{kernels.forward}|{kernels.backward}" if kernels and not kernels.operators else _NO_NAME
    return seconds, split(pieces, _spans(events), names if unmarked else None, steps, seconds)


_NO_NAME = r"(?!)"


def counted(events: list[Any]) -> list[Any]:
    """The events after the mark `counted`."""
    (first,) = (
        event for event in events if event.name == f"{MARK}counted" and event.device_type == DeviceType.CPU
    )
    return [event for event in events if event.time_range.start > first.time_range.start]


def _timed(device: str, work: Callable[[], None], steps: int) -> list[float]:
    """Seconds of so many steps by the device's own clock, as the run's: the first may wait for the host."""
    marks = clock(torch.device(device))
    marks.start()
    for _ in range(steps):
        work()
        marks.mark()
    return marks.spans()


def _note(name: str) -> None:
    with mark(name):
        pass


def _when_there(tensor: Tensor, name: str) -> None:
    """Note when the gradient of a tensor is there."""
    tensor.register_hook(lambda _gradient: _note(name))  # type: ignore[no-untyped-call]  # torch leaves it so


def _mark(model: Llama, inside: bool) -> None:
    """Have the model mark parts that are not separate calls of the step.

    Args:
        inside: also inside its blocks, which compiled code does not support.
    """

    def loss_begins(_module: Any, _inputs: Any, hidden_BTC: Tensor) -> None:
        if hidden_BTC.requires_grad:
            _note("hidden")
            _when_there(hidden_BTC, "hidden gradient")

    model.norm.register_forward_hook(loss_begins)
    for block in model.blocks if inside else ():
        attention: Any = block.attention
        attention.attend = _marked(attention.attend)


def _marked(attend: Attend) -> Attend:
    """Attention with marks around it. Its backward runs from the gradient of o to the first of q, k and v."""

    def marked(q_BTHD: Tensor, k_BTKD: Tensor, v_BTKD: Tensor) -> Tensor:
        with mark("attention"):
            o_BTHD = attend(q_BTHD, k_BTKD, v_BTKD)
        if o_BTHD.requires_grad:
            _when_there(o_BTHD, "o gradient")
            for tensor in (q_BTHD, k_BTKD, v_BTKD):
                _when_there(tensor, "qkv gradient")
        return o_BTHD

    return marked


def _spans(events: list[Any]) -> list[Span]:
    """When the host was where, by the marks."""
    marks = sorted(
        (event.time_range.start, event.name.removeprefix(MARK), event.time_range.end)
        for event in events
        if event.name.startswith(MARK) and event.device_type == DeviceType.CPU
    )
    spans, opened = [], dict[str, float]()
    for start, name, end in marks:
        if name == "attention":
            spans.append(Span("attention", start, end))
        elif name == "optimizer":
            spans.append(Span("optimizer", start, end))
        elif name == "forward":
            opened["forward"] = end
        elif name == "hidden":
            spans.append(Span("loss", start, opened["forward"]))
        elif name in ("backward", "o gradient"):
            opened[name] = start
        elif name == "hidden gradient":
            spans.append(Span("loss", opened["backward"], start))
        elif "o gradient" in opened:  # the first of the gradients of q, k and v
            spans.append(Span("attention", opened.pop("o gradient"), start))
    return spans


def _kernels(events: list[Any]) -> list[Piece]:
    """The GPU's kernels, each with when the host launched it: both events have the launch's number."""
    launches = {
        event.id: event.time_range.start
        for event in events
        if event.device_type == DeviceType.CPU and event.name.startswith(_LAUNCH)
    }
    return [
        Piece(event.name, event.time_range.start, event.time_range.elapsed_us(), launches.get(event.id))
        for event in events
        if event.device_type == DeviceType.CUDA and not _is_mark(event)
    ]


def _operators(events: list[Any]) -> list[Piece]:
    """When each operator itself ran in the thread of the steps, and when gloo's operators ran."""
    threads = {event.thread for event in events if event.name.startswith(MARK)}
    here = [event for event in events if event.thread in threads and not event.is_async]
    ran = [(event, event.time_range) for event in events if event.name.startswith(_GLOO)]
    return [
        *(
            Piece(event.name, start, end - start, event.time_range.start)
            for event, start, end in _innermost(here)
            if not _is_mark(event)
        ),
        *(Piece(event.name, when.start, when.elapsed_us(), None) for event, when in ran),
    ]


def _innermost(events: list[Any]) -> Iterator[tuple[Any, float, float]]:
    """The innermost running event of one thread at each time, from when to when."""
    within: list[Any] = []
    now = 0.0
    for event in [*sorted(events, key=lambda piece: (piece.time_range.start, -piece.time_range.end)), None]:
        start = event.time_range.start if event else inf
        while within and now < start:
            until = min(within[-1].time_range.end, start)
            if until > now:
                yield within[-1], now, until
                now = until
            if within[-1].time_range.end <= now:
                within.pop()
        now = start
        within.append(event)


def _is_mark(event: Any) -> bool:
    """Whether the event is one of our marks, or another annotation, and no work."""
    return is_annotation(event) or event.name.startswith(MARK)
