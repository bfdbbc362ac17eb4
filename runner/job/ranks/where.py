"""Where a process is in its code, as seen by another of its threads."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Thread, main_thread
from types import FrameType

# A thread in one of these waits for other processes.
_WAITING = frozenset(
    {
        "model.training.parallel.world",
        "torch.distributed.distributed_c10d",
        "torch.distributed._functional_collectives",
    }
)
# Modules whose callers wait for a thread of theirs, and how its name begins.
_HELPERS = {"model.training.keeper": "checkpoint_", "model.training.feed": "data_"}
_OWN = ("model", "runner")


@dataclass(frozen=True)
class Place:
    """Where a process is.

    Attributes:
        steps: done.
        line: FILE:LINE of the innermost frame of our own code.
        waits: whether it waits for other processes of the run.
    """

    steps: int
    line: str
    waits: bool


def place(steps: int) -> Place:
    """Where this process's main thread is; if it waits for a checkpoint or data, where their thread is."""
    frames = _frames(main_thread())
    if helper := _helper(frames):
        frames = _frames(helper)
    own = next((each for each in frames if _module(each).partition(".")[0] in _OWN), None)
    line = f"{own.f_code.co_filename}:{own.f_lineno}" if own else "nowhere"
    return Place(steps, line, any(_module(each) in _WAITING for each in frames))


def _helper(frames: Sequence[FrameType]) -> Thread | None:
    """The thread that these frames wait for, if it is one of ours."""
    if not frames or _module(frames[0]) != "threading":
        return None
    begins = next((_HELPERS[name] for name in map(_module, frames) if name in _HELPERS), None)
    found = (each for each in threading.enumerate() if begins and each.name.startswith(begins))
    return next(found, None)


def _frames(thread: Thread) -> list[FrameType]:
    """A thread's frames, the innermost first."""
    found, frame = [], sys._current_frames().get(thread.ident or 0)
    while frame is not None:
        found.append(frame)
        frame = frame.f_back
    return found


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))
