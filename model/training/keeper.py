"""When a run saves its state, and from which state it starts.

`checkpoint` knows how, and for runs of several processes `shards`, whose imports take a second.

For a periodic checkpoint, training waits until the tensors are copied to host memory; a thread then writes
the copy while training continues. When a run stops, its checkpoint is written without a copy: no training
waits for it, and little time may be left.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Self

from model.record.errors import Interrupted
from model.record.text import START, Position
from model.record.units import say
from model.training import checkpoint, tensorfile
from model.training.parallel.world import ALONE, World
from model.training.staging import Staging

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup

_SAVE, _STOP = 1, 2


@dataclass(frozen=True)
class Checkpoints:
    """The place and the times at which a run saves its state.

    Attributes:
        folder: the attempt's; the checkpoint is `folder`/checkpoint.
        every_seconds: between periodic checkpoints; None: only when asked to stop.
        should_stop: called after every step, so it must be cheap. Each process of a run calls it, and all
            stop if it returns True in one.
        resume_from: the folder of an earlier attempt, whose checkpoint to resume from.
        before: called in the first process before each is written, by the thread that writes it: puts the
            records that it must not outlive on disk.
    """

    folder: Path
    every_seconds: float | None
    should_stop: Callable[[], bool]
    resume_from: Path | None
    before: Callable[[], None] = lambda: None


@dataclass
class Keeper:
    """Decides where a run starts and after which steps its state is saved, and saves it.

    As a context manager, it waits at the end for the save that is under way.
    """

    checkpoints: Checkpoints | None
    state: checkpoint.TrainingState
    world: World = ALONE
    saved: float = 0.0  # time.monotonic(), which nobody can turn back
    stopping: bool = False
    group: ProcessGroup | None = None
    _staging: Staging = field(default_factory=Staging)
    _writer: ThreadPoolExecutor = field(default_factory=partial(ThreadPoolExecutor, 1, "checkpoint"))
    _writing: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._settle()
        elif self._writing and self.world.place.size == 1:  # else the error must reach the others at once
            wait([self._writing])

    def start(self) -> tuple[int, Position]:
        """Load the checkpoint to resume from, if any.

        Returns:
            The last step done, and where the batches of the next one start.

        Raises:
            Unreadable, UserError: as `checkpoint.load`.
        """
        earlier = self.checkpoints and self.checkpoints.resume_from
        resumed = 0, START
        if earlier:
            folder = earlier / "checkpoint"
            if self.world.place.size == 1 and not checkpoint.is_of_several(folder):
                resumed = checkpoint.load(folder, self.state)
            else:
                from model.training.parallel import shards

                resumed = shards.load(folder, self.state, self.world)
        self.saved = time.monotonic()
        return resumed

    def due(self, step: int) -> bool:
        """Whether to save after this step; never after the last, which leaves nothing to resume.

        Raises:
            Exception: a save that was under way has failed, and not because of the disk.
        """
        if self.checkpoints is None or step == self.state.config.train.steps:
            return False
        if self._writing and self._writing.done():
            self._settle()
        every = self.checkpoints.every_seconds
        late = every is not None and time.monotonic() - self.saved >= every
        asked = _STOP if self.checkpoints.should_stop() else _SAVE if late else 0
        agreed = self.world.most(asked)
        self.stopping = agreed == _STOP
        return bool(agreed)

    def keep(self, step: int, position: Position) -> None:
        """Save after waiting for the save before, and stop the run if that was asked.

        Otherwise it returns as soon as the state may change; if the disk fails later, stderr says so.

        Raises:
            Interrupted: asked to stop, and saved.
            OSError: asked to stop, and not saved.
        """
        assert self.checkpoints
        self._settle()
        write: Callable[..., None] = checkpoint.save
        if self.world.place.size > 1:
            from model.training.parallel import shards

            self.group = self.group or shards.connect()  # all processes must call this
            write = partial(shards.save, world=self.world, group=self.group)
        folder, before = self.checkpoints.folder / "checkpoint", self.checkpoints.before

        def save(hold: tensorfile.Hold = tensorfile.passing) -> None:
            if self.world.is_first:
                before()
            write(folder, self.state, step, position, hold=hold)

        if self.stopping:
            save()
            raise Interrupted(step)
        held = Event()
        self._writing = self._writer.submit(self._write, save, step, held)
        held.wait()
        self.saved = time.monotonic()

    def _write(self, save: Callable[[tensorfile.Hold], None], step: int, held: Event) -> None:
        """Save from a copy, and set `held` once it is made; without room for a copy, once all is written."""

        def hold(tensors: Collection[Tensor]) -> Iterable[memoryview]:
            try:
                copies = self._staging.hold(tensors)
            except MemoryError as error:
                say(f"training waits until the checkpoint at step {step} is written: {error}")
                return tensorfile.passing(tensors)
            held.set()
            return copies

        try:
            save(hold)
        except OSError as error:
            if self.world.is_first:
                say(f"could not save a checkpoint at step {step}; training continues: {error}")
        finally:
            held.set()

    def _settle(self) -> None:
        """Wait for the save that is under way; raise what ended it, if that was not the disk."""
        writing, self._writing = self._writing, None
        if writing:
            writing.result()
