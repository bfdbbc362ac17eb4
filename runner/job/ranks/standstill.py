"""Where a run's processes are in their code, which tells a run that hangs from one whose step is slow."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from threading import Thread, main_thread
from types import FrameType

HANG_SECONDS = 120.0  # without any movement while no process is at work
TURN_SECONDS = 5.0  # between checks whether rank 0 has asked; it asks as often
STOP_SECONDS = 15.0  # like HANG_SECONDS, once the run is to stop: Slurm kills it 30 s after that
LIMIT_SECONDS = 540.0  # without movement while one works and others wait; less than a collective's time-out
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
# What a process does, and what several do, by whether it waits; None: it has not answered recently.
_VERBS = {
    None: ("does not answer", "do not answer"),
    True: ("waits for the others", "wait for the others"),
    False: ("is", "are"),
}


@dataclass(frozen=True)
class Whereabouts:
    """Where a process is in its code.

    Attributes:
        steps: done.
        line: FILE:LINE of the innermost frame of our own code.
        waits: whether it waits for other processes of the run.
    """

    steps: int
    line: str
    waits: bool


def whereabouts(steps: int) -> Whereabouts:
    """Where this process's main thread is; if it waits for a checkpoint or data, where their thread is."""
    frames = _frames(main_thread())
    if frames and _module(frames[0]) == "threading":
        prefix = next((_HELPERS[name] for name in map(_module, frames) if name in _HELPERS), None)
        helpers = [thread for thread in threading.enumerate() if prefix and thread.name.startswith(prefix)]
        # Of an earlier one there may be an idle thread, which has no frame of ours.
        frames = next((at for at in map(_frames, helpers) if _own(at)), frames)
    own = _own(frames)
    line = f"{own.f_code.co_filename}:{own.f_lineno}" if own else "nowhere"
    return Whereabouts(steps, line, any(_module(frame) in _WAITING for frame in frames))


def _frames(thread: Thread) -> list[FrameType]:
    """A thread's frames, the innermost first."""
    frames, frame = [], sys._current_frames().get(thread.ident or 0)
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames


def _own(frames: Iterable[FrameType]) -> FrameType | None:
    """The innermost frame of our own code."""
    return next((frame for frame in frames if _module(frame).partition(".")[0] in _OWN), None)


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


@dataclass
class Standstill:
    """How long nothing has moved: no step was done, and no process is at a different line.

    A working process moves, however slow its step is. One that is in a single call for minutes may still be
    working, as long as it answers; then the others wait for it until the limit.
    """

    hang_seconds: float = HANG_SECONDS
    stop_seconds: float = STOP_SECONDS
    limit_seconds: float = LIMIT_SECONDS
    since: float = 0.0
    _places: Mapping[int, Whereabouts | None] = field(default_factory=dict)

    def reason(
        self,
        now: float,
        places: Mapping[int, Whereabouts | None],
        nodes: Mapping[int, str],
        stopping: bool = False,
    ) -> str | None:
        """Why the run hangs; None if it does not, or that is not known yet.

        Args:
            now: on a monotonic clock.
            places: by rank; None: it has not answered recently.
            nodes: by rank.
            stopping: whether the run is to stop, which needs all its processes.
        """
        if dict(places) != self._places:
            self._places, self.since = dict(places), now
            return None
        still, waits = now - self.since, [place is not None and place.waits for place in places.values()]
        silent = None in places.values()
        patience = self.stop_seconds if stopping else self.hang_seconds
        if not (silent or all(waits)):
            patience = self.limit_seconds
        if not (any(waits) or silent) or still < patience:
            return None
        return f"hangs: nothing has moved for {still:.0f} s; {describe(places, nodes)}"


@dataclass
class Silence:
    """How long rank 0 has been silent while this process did not move, counted in turns.

    A clock would be wrong: if this process was stopped too, it could not hear anything meanwhile.

    Attributes:
        heard: whether rank 0 has said something since the last turn.
        begun: whether rank 0 has said that training begins; before that it has more time, to load libraries.
    """

    heard: bool = True
    begun: bool = False
    seconds: float = 0.0
    _before: Whereabouts | None = None

    def turn(self, here: Whereabouts) -> bool:
        """Count one more turn; returns whether rank 0 hangs."""
        self.seconds = 0.0 if self.heard or here != self._before else self.seconds + TURN_SECONDS
        self.heard, self._before = False, here
        return self.seconds >= (HANG_SECONDS if self.begun else LIMIT_SECONDS)


def describe(places: Mapping[int, Whereabouts | None], nodes: Mapping[int, str]) -> str:
    """Where the processes are, those at one place together; those that the others wait for come first."""
    together: dict[Whereabouts | None, list[int]] = {}
    for rank, place in places.items():
        together.setdefault(place, []).append(rank)
    words = []
    for place, ranks in sorted(together.items(), key=lambda item: bool(item[0] and item[0].waits)):
        several, where = len(ranks) > 1, dict.fromkeys(nodes.get(rank, "?") for rank in ranks)
        subject = f"rank{'s' * several} {ranges(ranks)} on {', '.join(where)}"
        after = f" after step {place.steps}, at {place.line}" if place else ""
        words.append(f"{subject} {_VERBS[place.waits if place else None][several]}{after}")
    return "; ".join(words)


def ranges(numbers: Iterable[int]) -> str:
    """Ascending numbers in words, those in a row by their first and last: 0-5, 7, 9-10."""
    groups = groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])
    rows = [[number for _, number in group] for _, group in groups]
    return ", ".join(f"{row[0]}-{row[-1]}" if len(row) > 1 else str(row[0]) for row in rows)
