"""What is noted of steps from one record to the next: tokens, seconds, joules, losses and gradient norms."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from statistics import median

import torch
from torch import Tensor

from model.measure.machine import peak_memory_bytes
from model.measure.nvml import Gpu, PowerWindow, power_of_all
from model.record.records import StepRecord, finite, now
from model.training.feed import Ready
from model.training.parallel.world import ALONE, World


class Meter:
    """Counts and times the steps between two records. Only record() waits for the device.

    A step has two marks, by the device's own clock: when its batch is there, and when it is done. The time
    between record() and restart() belongs to no step.
    """

    def __init__(self, device: torch.device, world: World = ALONE) -> None:
        self._world = world
        self._device, on_gpu = device.type, device.type == "cuda"
        self._gpu = Gpu(str(torch.cuda.get_device_properties(device).uuid) if on_gpu else None)
        self._clock, self._own_clock = clock(device), clock(device)
        self._window = PowerWindow()
        self._begin()

    def count(self, batch: Ready) -> Ready:
        """Count a batch that was just taken, and return it."""
        self._clock.mark()
        self._tokens += batch.inputs_BT.numel() * self._world.parts
        self._training_tokens += batch.training_tokens
        return batch

    def done(self) -> None:
        """Mark the end of a step, which the device may only reach later."""
        self._clock.mark()
        self._world.own.done()

    def record(
        self, step: int, loss: Tensor | None = None, norm: Tensor | None = None, rate: float | None = None
    ) -> StepRecord:
        """Wait until the last step is done, and return the record of the steps since the last record.

        All processes make it together; where their times differ, it has the slowest one's.

        Args:
            loss: None, as are norm and rate, if nothing is trained.
        """
        self._world.own.pause()
        sm_mhz, reasons = self._gpu.sm_mhz(), self._gpu.throttle_reasons()  # while the device is at work
        spans, joules, at = self._clock.spans(), self._gpu.joules(), time.perf_counter()
        own = self._world.own.seconds()
        waits, works = spans[::2], spans[1::2]
        seconds = [wait + work for wait, work in zip(waits, works, strict=True)]
        own_record = StepRecord(
            step=step,
            steps=len(seconds),
            time=now(),
            loss=None if loss is None else finite(loss.item()),
            learning_rate=rate,
            grad_norm=None if norm is None else finite(norm.item()),
            step_seconds=sum(seconds) / len(seconds),
            step_seconds_min=min(seconds),
            step_seconds_median=median(seconds),
            step_seconds_max=max(seconds),
            data_wait_seconds=sum(waits),
            tokens=self._tokens,
            training_tokens=None if loss is None else self._training_tokens,
            memory_bytes=peak_memory_bytes(self._device),
            energy_joules=None if joules is None or self._joules is None else joules - self._joules,
            sm_mhz=sm_mhz,
            throttle_reasons=reasons,
            **self._window.pause(joules, at, len(seconds)),
        )
        record = together(self._world.gather((own_record, own)))
        if record.power_steps is not None:
            self._window.close(joules)
        return record

    def restart(self) -> None:
        """Collect garbage, and start the next interval."""
        gc.collect()
        gc.freeze()  # what is left stays: the next collection need not look at it
        self._begin()

    def _begin(self) -> None:
        self._tokens = self._training_tokens = 0
        self._joules = self._gpu.joules()
        self._window.resume(self._joules, time.perf_counter())
        self._clock.start()
        self._world.own.start(self._own_clock)


def together(gathered: Sequence[tuple[StepRecord, float | None]]) -> StepRecord:
    """A run's record from its processes' records, each of which has the run's tokens, loss and norm.

    Args:
        gathered: by rank: its record, and the seconds per step that it worked by itself; None if unknown.
    """
    records = [record for record, _ in gathered]
    longest = max(records, key=lambda record: record.step_seconds)
    longest = longest.model_copy(update={**power_of_all(records)})
    if len(records) == 1:
        return longest
    joules = [record.energy_joules for record in records if record.energy_joules is not None]
    waits = [record.data_wait_seconds for record in records if record.data_wait_seconds is not None]
    clocks = [record.sm_mhz for record in records if record.sm_mhz is not None]
    held = [record.throttle_reasons for record in records if record.throttle_reasons is not None]
    reasons = dict.fromkeys(name for reason in held for name in reason.split(", ") if name)

    # Which process spent the most on its own work, and what the others spent, if that is known for all.
    slowest = dict[str, float]()
    owns = [own for _, own in gathered if own is not None]
    if len(owns) == len(gathered):
        rank = owns.index(max(owns))
        slowest = {
            "slowest_rank": rank,
            "slowest_rank_seconds": owns[rank],
            "other_ranks_seconds": median(owns[:rank] + owns[rank + 1 :]),
        }
    return longest.model_copy(
        update={
            # While one waits for data, the others wait for it in a collective, and are as slow.
            "data_wait_seconds": max(waits, default=None),
            "memory_bytes": max(record.memory_bytes for record in records),
            "energy_joules": sum(joules) if len(joules) == len(records) else None,
            "sm_mhz": min(clocks, default=None),
            "throttle_reasons": ", ".join(reasons) if held else None,
            **slowest,
        }
    )


class Trail:
    """Keeps each step's loss and norms on the device, and tells only when asked what went wrong first.

    Args:
        names: of the parameters, in the order of the model.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._steps: list[tuple[int, Tensor, Tensor]] = []

    def add(self, step: int, loss: Tensor, norms: Tensor) -> None:
        """Keep a step's loss, and the norm of each parameter's gradient, (P,)."""
        self._steps.append((step, loss.detach(), norms))

    def clear(self) -> None:
        """Forget them: all were finite."""
        self._steps.clear()

    def first(self) -> str:
        """The first thing that is not finite: the loss, or a gradient, in the order of the computation."""
        for step, loss, norms in self._steps:
            if not loss.isfinite():
                earlier = [other for other, _, _ in self._steps if other < step]
                before = f"; all gradients of step {earlier[-1]} were finite" if earlier else ""
                return f"loss {loss.item()} at step {step}{before}"
            bad = (~norms.isfinite()).nonzero().flatten().tolist()
            if bad:  # the backward pass comes to the last layers first
                others = f" (not finite in all: {len(bad)})" if len(bad) > 1 else ""
                first = f"the gradient of {self._names[bad[-1]]} has norm {norms[bad[-1]].item()}"
                return f"{first}{others}, at step {step}; the loss was {loss.item():.4g}"
            if not (norm := torch.linalg.vector_norm(norms)).isfinite():
                return f"gradient norm {norm.item()} at step {step}; the loss was {loss.item():.4g}"
        return "a loss or a gradient is not finite"


@contextmanager
def no_collector() -> Iterator[None]:
    """Keep the garbage collector from running in the middle of a step; `Meter.restart` runs it."""
    enabled = gc.isenabled()
    gc.disable()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        if enabled:
            gc.enable()


def clock(device: torch.device) -> _DeviceClock | _HostClock:
    """The clock of a device."""
    return _DeviceClock() if device.type == "cuda" else _HostClock()


class _HostClock:
    """Marks by the host's clock, for a device whose work is done when a call returns."""

    def start(self) -> None:
        self._marks = [time.perf_counter()]

    def mark(self) -> None:
        self._marks.append(time.perf_counter())

    def spans(self) -> list[float]:
        """Seconds from each mark to the next."""
        return [after - before for before, after in pairwise(self._marks)]


class _DeviceClock:
    """The same by events in the device's stream, which nobody has to wait for when they are recorded."""

    def __init__(self) -> None:
        self._events: list[torch.cuda.Event] = []  # used again in every interval
        self._used = 0

    def start(self) -> None:
        self._used = 0
        self.mark()

    def mark(self) -> None:
        if self._used == len(self._events):
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch leaves it so
            self._events.append(event)
        self._events[self._used].record()
        self._used += 1

    def spans(self) -> list[float]:
        marks = self._events[: self._used]
        marks[-1].synchronize()
        return [before.elapsed_time(after) / 1e3 for before, after in pairwise(marks)]
