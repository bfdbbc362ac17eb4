"""When a run saves its state, and from which state it starts.

`checkpoint` knows how, and for runs of several processes `shards`, whose imports take a second.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from model.disk import checkpoint
from model.errors import Interrupted
from model.parallel.world import ALONE, World
from model.text import START, Position

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_SAVE, _STOP = 1, 2


@dataclass(frozen=True)
class Checkpoints:
    """Where and when a run saves its state.

    Attributes:
        folder: the attempt's; the checkpoint is `folder`/checkpoint.
        every_seconds: between periodic checkpoints; None: only when asked to stop.
        should_stop: called after every step, so it has to be cheap; in each process of a run, and all of them
            stop if one is asked to.
        resume_from: the folder of an earlier attempt, whose checkpoint to resume from.
    """

    folder: Path
    every_seconds: float | None
    should_stop: Callable[[], bool]
    resume_from: Path | None


@dataclass
class Keeper:
    """Says where a run starts and after which steps its state is saved, and saves it."""

    checkpoints: Checkpoints | None
    state: checkpoint.State
    world: World = ALONE
    saved: float = 0.0  # by time.monotonic(), which nobody can turn back
    stopping: bool = False
    group: ProcessGroup | None = None

    def start(self) -> tuple[int, Position]:
        """Load the checkpoint to resume from, if any.

        Returns:
            The last step done, and where the batches of the next one start.

        Raises:
            Unreadable, UserError: as `checkpoint.load`.
        """
        earlier = self.checkpoints and self.checkpoints.resume_from
        found = self._load(earlier / "checkpoint") if earlier else (0, START)
        self.saved = time.monotonic()
        return found

    def due(self, step: int) -> bool:
        """Whether to save after this step; never after the last, which leaves nothing to resume."""
        if self.checkpoints is None or step == self.state.config.train.steps:
            return False
        every = self.checkpoints.every_seconds
        late = every is not None and time.monotonic() - self.saved >= every
        asked = _STOP if self.checkpoints.should_stop() else _SAVE if late else 0
        agreed = self.world.most(asked)
        self.stopping = agreed == _STOP
        return bool(agreed)

    def keep(self, step: int, position: Position) -> None:
        """Save, and stop the run if that was asked. If a periodic checkpoint fails, stderr says so.

        Raises:
            Interrupted: asked to stop, and saved.
            OSError: asked to stop, and not saved.
        """
        assert self.checkpoints
        try:
            self._save(self.checkpoints.folder / "checkpoint", step, position)
        except OSError as error:
            if self.stopping:
                raise
            if self.world.is_first:
                sys.stderr.write(f"could not save a checkpoint at step {step}; training continues: {error}\n")
        self.saved = time.monotonic()
        if self.stopping:
            raise Interrupted(step)

    def _load(self, kept: Path) -> tuple[int, Position]:
        if self.world.place.size == 1 and not checkpoint.is_of_several(kept):
            return checkpoint.load(kept, self.state)
        from model.parallel import shards

        return shards.load(kept, self.state, self.world)

    def _save(self, kept: Path, step: int, position: Position) -> None:
        if self.world.place.size == 1:
            checkpoint.save(kept, self.state, step, position)
            return
        from model.parallel import shards

        self.group = self.group or shards.connect()
        shards.save(kept, self.state, step, position, self.world, self.group)
