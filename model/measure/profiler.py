"""PyTorch's profiler around a piece of work."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch.autograd.profiler import profile

Result = TypeVar("Result")


def watched(device: str, work: Callable[[], Result]) -> tuple[Result, list[Any]]:
    """Run it under the profiler; gives its result, and the events that the profiler saw.

    This is what `torch.profiler.profile` consists of; that class would also import inductor, for seconds.
    """
    watching = profile(use_device="cuda" if device == "cuda" else None, use_kineto=True)
    with _quiet():
        watching.__enter__()  # type: ignore[no-untyped-call]  # torch leaves these so
    try:
        result = work()
        if device == "cuda":
            torch.cuda.synchronize()
    finally:
        with _quiet():
            watching.__exit__(None, None, None)  # type: ignore[no-untyped-call]
    return result, list(watching.function_events or ())


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
