"""Looks at runs again and again: at their files each time, and at Slurm after pauses that grow."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from runner.execute.reconcile import reconciled
from runner.state.ledger import RunState
from runner.state.runs import in_flight, states

# Seconds between questions to Slurm. Centres ask for a minute; at first and after a change, more is to come.
SHORTEST, LONGEST = 2.0, 60.0
GROWTH = 1.5


class Patience:
    """When to ask next: soon after something has changed, and less and less often while nothing does.

    Args:
        clock: seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due, self._pause = clock(), SHORTEST
        self._seen: object = None

    def due(self, seen: object) -> bool:
        """Whether to ask now.

        Args:
            seen: what can be seen without asking; if it differs from the last time, something has changed.
        """
        now = self._clock()
        if seen != self._seen:
            self._seen, self._pause = seen, SHORTEST
            self._due = min(self._due, now + SHORTEST)
        if now < self._due:
            return False
        self._due, self._pause = now + self._pause, min(GROWTH * self._pause, LONGEST)
        return True


class Watch:
    """The runs under a root, or of one study, while they go on.

    Attributes:
        asked: whether the latest look asked Slurm, and repaired what dead launchers left.
    """

    def __init__(self, root: Path, study: str | None) -> None:
        self.root, self.study, self.asked = root, study, False
        self._patience = Patience()

    def look(self) -> list[RunState]:
        """The runs as they are now. What only Slurm knows is as of when it was asked last."""
        shown = states(self.root, self.study)
        flying = in_flight(shown)
        on_slurm = any(state.latest and state.latest.executor == "slurm" for state in flying)
        seen = {(str(one.folder.path), one.attempt, one.phase, one.outcome, one.job_id) for one in shown}
        self.asked = self._patience.due(seen) or not on_slurm
        return reconciled(self.root, self.study) if self.asked else shown
