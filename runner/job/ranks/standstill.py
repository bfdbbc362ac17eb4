"""Tells a run that hangs from one whose step is slow, by where its processes are in the code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from runner.job.ranks.where import Place

HANG_SECONDS = 120.0  # without any movement while no process is at work
TURN_SECONDS = 5.0  # between checks whether rank 0 has asked; it asks as often
STOP_SECONDS = 15.0  # like HANG_SECONDS, once the run is to stop: Slurm kills it 30 s after that
LIMIT_SECONDS = 540.0  # without movement while one works and others wait; less than a collective's time-out


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
    _places: Mapping[int, Place | None] = field(default_factory=dict)

    def reason(
        self,
        now: float,
        places: Mapping[int, Place | None],
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
        return f"hangs: nothing has moved for {still:.0f} s; {stands(places, nodes)}"


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
    _before: Place | None = None

    def turn(self, here: Place) -> bool:
        """Count one more turn; returns whether rank 0 hangs."""
        self.seconds = 0.0 if self.heard or here != self._before else self.seconds + TURN_SECONDS
        self.heard, self._before = False, here
        return self.seconds >= (HANG_SECONDS if self.begun else LIMIT_SECONDS)


def stands(places: Mapping[int, Place | None], nodes: Mapping[int, str]) -> str:
    """Where each process is; those that the others wait for come first."""
    came = [rank for rank, place in places.items() if place and place.waits]
    others = [rank for rank in places if rank not in came]
    return "; ".join(_words(rank, places[rank], nodes.get(rank, "?")) for rank in (*others, *came))


def _words(rank: int, place: Place | None, node: str) -> str:
    if place is None:
        return f"rank {rank} on {node} does not answer"
    verb = "waits for the others" if place.waits else "is"
    return f"rank {rank} on {node} {verb} after step {place.steps}, at {place.line}"
