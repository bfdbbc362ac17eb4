"""Where the two kinds of device differ: clocks, caches, and memory that PyTorch holds."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from model.measure.nvml import Gpu
from model.measure.profiler import most_allocated, seconds_on_gpu, watched

CACHE_BYTES = {"cuda": 2**28, "cpu": 2**26}  # more than the caches of a GPU; of a CPU, than a core's share
PRODUCT_SIZE = {"cuda": 8192, "cpu": 512}  # of a square matrix: large enough that it reaches the highest rate


@dataclass
class Timed:
    """The calls of one backend in one direction so far.

    Attributes:
        host_seconds: until each call returned, where that is not when its work is done.
    """

    seconds: list[float] = field(default_factory=list)
    host_seconds: list[float] = field(default_factory=list)
    sm_mhz: list[float] = field(default_factory=list)
    throttle_reasons: set[str] = field(default_factory=set)


class Cpu:
    """The host's clock, for work that is done when the call returns."""

    def __init__(self) -> None:
        self._cache = torch.empty(CACHE_BYTES["cpu"], dtype=torch.int8)

    def time(self, work: Callable[[], object], into: Timed) -> None:
        """Time one call on cold caches."""
        self._cache.zero_()
        started = time.perf_counter()
        work()
        into.seconds.append(time.perf_counter() - started)

    def most_memory(self, work: Callable[[], object]) -> int:
        """Bytes that PyTorch allocates at a time, at most, during a call."""
        return most_allocated(work)

    def release(self) -> None:
        """Free unused memory; the host's allocator keeps none."""


class Cuda:
    """Events on the device. The host enqueues a call while the device still clears its cache."""

    def __init__(self) -> None:
        self._cache = torch.empty(CACHE_BYTES["cuda"], dtype=torch.int8, device="cuda")
        self._gpu = Gpu(str(torch.cuda.get_device_properties(0).uuid))
        # PyTorch leaves these unannotated.
        self._start, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]

    def time(self, work: Callable[[], object], into: Timed) -> None:
        """Time one call on a cold cache."""
        torch.cuda.synchronize()
        self._cache.zero_()
        self._start.record()
        started = time.perf_counter()
        work()
        returned = time.perf_counter()
        self._end.record()
        mhz, reasons = self._gpu.sm_mhz(), self._gpu.throttle_reasons()  # while the device is at work
        self._end.synchronize()
        into.seconds.append(self._start.elapsed_time(self._end) / 1e3)
        into.host_seconds.append(returned - started)
        into.sm_mhz += [mhz] if mhz is not None else []
        into.throttle_reasons |= {reasons} if reasons is not None else set()

    def kernel_seconds(self, work: Callable[[], object]) -> float | None:
        """Seconds of the kernels of one call on a cold cache; None if the profiler sees none."""
        self._cache.zero_()
        torch.cuda.synchronize()
        _, events = watched("cuda", work)
        return seconds_on_gpu(events) or None

    def most_memory(self, work: Callable[[], object]) -> int:
        """Bytes that PyTorch allocates at a time, at most, during a call, beyond those from before it."""
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        work()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before

    def release(self) -> None:
        """Free unused memory, so that another backend's call finds room."""
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def device(kind: str) -> Cpu | Cuda:
    """The run's device, "cuda" or "cpu"."""
    return Cuda() if kind == "cuda" else Cpu()
