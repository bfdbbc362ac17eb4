"""PyTorch's profiler around a piece of work."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, TypeVar

import torch
from torch._C._autograd import DeviceType
from torch.autograd.profiler import profile

Result = TypeVar("Result")


def watched(device: str, work: Callable[[], Result], shapes: bool = False) -> tuple[Result, list[Any]]:
    """Run it under the profiler; gives its result, and the events that the profiler saw.

    This is what `torch.profiler.profile` consists of; that class would also import inductor, for seconds.

    Args:
        shapes: whether events say the shapes of their inputs, and the FLOP of matrix products.
    """
    gpu = "cuda" if device == "cuda" else None
    watching = profile(use_device=gpu, use_kineto=True, record_shapes=shapes, with_flops=shapes)
    with _quiet():
        watching.__enter__()  # type: ignore[no-untyped-call]  # torch leaves these so
    try:
        result = work()
        wait(device)
    finally:
        with _quiet():
            watching.__exit__(None, None, None)  # type: ignore[no-untyped-call]
    return result, list(watching.function_events or ())


def is_annotation(event: Any) -> bool:
    """Whether the event is a region that code gives a name to, and no work itself."""
    return bool(getattr(event, "is_user_annotation", False))


def seconds_on_gpu(events: Iterable[Any]) -> float:
    """How long a GPU's kernels, copies and fills took among these events, without the gaps between them.

    Annotations are on the GPU's timeline too, and not counted again.
    """
    took = (
        event.time_range.elapsed_us()
        for event in events
        if event.device_type == DeviceType.CUDA and not is_annotation(event)
    )
    return float(sum(took)) / 1e6


def wait(device: str) -> None:
    """Wait until the device has done what it was asked; a CPU has when the call returns."""
    if device == "cuda":
        torch.cuda.synchronize()


def most_allocated(work: Callable[[], object]) -> int:
    """Bytes of the host's memory that PyTorch allocates during the work: the most at a time.

    What was there before, and is freed meanwhile, counts as freed.
    """
    watching = profile(use_kineto=True, profile_memory=True)
    with _quiet(), watching:  # it also writes there which sizes it does not know
        work()
    assert watching.kineto_results
    events: list[Any] = watching.kineto_results.events()
    changes = [event for event in events if event.name() == "[memory]"]
    held = accumulate(event.nbytes() for event in sorted(changes, key=lambda event: event.start_ns()))
    return max(held, default=0)


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
