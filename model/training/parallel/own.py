"""How long one of several processes works by itself in its steps, not waiting for the others.

All processes end a step together, so the clock does not show which is slowest: it is the one that spends the
most time on its own data and computing, while the others wait for it in collectives. Marks in the device's
stream surround everything that may wait: where FSDP2 gathers and scatters a block, where keys are gathered,
from the end of a backward pass to the sum of its gradients, and where processes agree on numbers. The
transfers themselves are left out too. Nothing waits for a mark before the record that reads it.

Tensor parallelism waits inside blocks, in PyTorch's own and in compiled code; there nothing is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, Protocol, TypeVar

Params = ParamSpec("Params")
Returned = TypeVar("Returned")


class Marks(Protocol):
    """A clock of this process's device."""

    def start(self) -> None:
        """Make the first mark."""

    def mark(self) -> None:
        """Make another."""

    def spans(self) -> list[float]:
        """Seconds from each mark to the next; waits for the last."""


MOST_STEPS = 32  # steps of an interval that are counted: a GPU's marks are kept until the record


class Own:
    """Counts this time from `start` to `seconds`; before and after, its methods do nothing.

    Args:
        measurable: whether it can be told where this process waits; nothing is counted otherwise.
    """

    def __init__(self, measurable: bool = True) -> None:
        self.measurable = measurable
        self._marks: Marks | None = None
        self._running, self._steps = False, 0

    def start(self, marks: Marks) -> None:
        """Begin to count."""
        if self.measurable:
            marks.start()
            self._marks, self._running, self._steps = marks, True, 0

    def pause(self) -> None:
        """Stop counting: from here on this process may wait for others."""
        if self._marks and self._running:
            self._marks.mark()
            self._running = False

    def resume(self) -> None:
        """Count again: this process works by itself."""
        if self._marks and not self._running and self._steps < MOST_STEPS:
            self._marks.mark()
            self._running = True

    def done(self) -> None:
        """A step is done."""
        if self._steps < MOST_STEPS:
            self._steps += 1
        if self._steps == MOST_STEPS:
            self.pause()

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Leave out the time spent inside."""
        running = self._running
        self.pause()
        try:
            yield
        finally:
            if running:
                self.resume()

    def around(self, call: Callable[Params, Returned]) -> Callable[Params, Returned]:
        """Wrap a call so that its time is left out."""

        @wraps(call)
        def left_out(*given: Params.args, **named: Params.kwargs) -> Returned:
            with self.apart():
                return call(*given, **named)

        return left_out

    def seconds(self) -> float | None:
        """Mean seconds of the steps counted since `start`; None if there are none. Waits for the device."""
        self.pause()
        marks, self._marks = self._marks, None
        return sum(marks.spans()[::2]) / self._steps if marks and self._steps else None
