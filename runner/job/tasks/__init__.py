"""What a run does on its node: one file per task. Nothing here records an outcome.

A file defines `task = TaskSpec(...)`, which says what to import and what to call; its name is the value of
the key `task`. What a task reads of the configuration is in `model.record.tasks`. Listing the
tasks imports none of their files.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from socket import socket
from typing import TYPE_CHECKING, Any, NamedTuple

from model.attention import require
from model.measure import machine
from model.measure.hostmemory import Limit
from model.record import versions
from model.record.config import RunConfig
from model.record.errors import Unsupported, UserError
from model.record.files import write
from model.record.folder import RunFolder
from model.record.records import Manifest, RunRecord
from model.record.text import Source
from runner.job.stop import Stop
from runner.state.ledger import RunState

if TYPE_CHECKING:
    from model.training.parallel.world import World


@dataclass
class Progress:
    """Progress of the attempt so far, for its result.

    Attributes:
        memory_bytes: peak so far of the process that needs most, as its records say.
        gpu: keeps other runs off the GPU, also while something is measured after the run.
        apart: pids of processes that the task has started, and which watch their own memory.
    """

    manifest: Manifest
    steps: int = 0
    loss: float | None = None
    memory_bytes: int = 0
    started: float = field(default_factory=time.monotonic)
    gpu: socket | None = None
    apart: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class TaskContext:
    """What an attempt hands to its task.

    Attributes:
        options: Python options that make a process import the run's code.
        source: the text, as it was before the certificate was made; None if the task reads none.
        meet: waits until all of the run's processes can begin; raises what
            `model.training.parallel.world.join` raises, and in rank 0
            `runner.job.ranks.first.Lost` if another process has ended.
        records: whether this process writes the attempt's records; the others of its run do not.
    """

    run: RunRecord
    folder: RunFolder
    progress: Progress
    stop: Stop
    options: Sequence[str]
    source: Source | None
    meet: Callable[[], World] = lambda: import_module("model.training.parallel.world").ALONE
    records: bool = True

    @property
    def attempt(self) -> Path:
        """The attempt's folder."""
        return self.folder.attempt(self.progress.manifest.attempt).path

    @property
    def text(self) -> Source:
        """The text of a task that reads one, looked at again: making the certificate took minutes.

        Raises:
            UserError: it has changed since the run was planned.
        """
        assert self.source
        return unchanged(self.run, self.source)

    def note(self, **facts: Any) -> None:
        """Add facts to the attempt's manifest, in the process that records them."""
        if not self.records:
            return
        self.progress.manifest = self.progress.manifest.model_copy(update=facts)
        write(self.attempt / "manifest.json", self.progress.manifest)


Afterwards = Callable[[], None]
SAME, DIFFERS, UNKNOWN = "same", "differs", "unknown"


class RepeatRow(NamedTuple):
    """A row of the table that compares a run with its repeat.

    Attributes:
        verdict: SAME, DIFFERS, UNKNOWN, or how large the difference is.
    """

    subject: str
    original: str
    repeat: str
    verdict: str

    @classmethod
    def of(cls, subject: str, original: Any, repeat: Any) -> RepeatRow:
        """A row that says whether two values are the same; a value of None is not known."""
        before, after = (UNKNOWN if value is None else str(value) for value in (original, repeat))
        verdict = UNKNOWN if UNKNOWN in (before, after) else SAME if original == repeat else DIFFERS
        return cls(subject, before, after, verdict)


@dataclass(frozen=True)
class TaskSpec:
    """What a task needs and does.

    Attributes:
        imports: modules to import beside torch, before the attempt's clock matters.
        run: raises what `model.training.trainer.train` raises; returns what to do once the result is on disk.
        compared: compares a run with its repeat; returns the rows of a table and a one-line summary.
        resumes: whether a later attempt resumes from a checkpoint; a task that starts over is not requeued.
        admits: whether it certifies the backends that it calls; otherwise the run's own is certified first.
        profiles: whether what it does once the result is on disk is a profile of its steps.
        records_steps: whether it leaves a record of each step, or of every few.
        leaves_gpu: whether this process must take nothing of the GPU, since others measure all of it.
    """

    imports: tuple[str, ...]
    run: Callable[[TaskContext], Afterwards | None]
    compared: Callable[[RunState, RunState], tuple[list[RepeatRow], str]]
    resumes: bool = False
    admits: bool = False
    profiles: bool = False
    records_steps: bool = True
    leaves_gpu: bool = False


def load(name: str) -> TaskSpec:
    """Import one task's file, but not what it imports."""
    task: TaskSpec = import_module(f"runner.job.tasks.{name}").task
    return task


def unchanged(run: RunRecord, source: Source) -> Source:
    """The text that the run was planned with; raises UserError if it has changed since."""
    if not source.recognised:  # else it is as the launch checked it
        source = source.checked(run.config.text.text_column)
    if source.fingerprint() != run.data_fingerprint:
        raise UserError(f"{run.data_file} or the tokenizer has changed since this run was planned")
    return source


def prepare(config: RunConfig) -> TaskSpec:
    """Import torch and what the task needs.

    Raises:
        Unsupported: torch or triton is too old or too new for the run, its backend does not support it (which
            on a CPU is mostly known without torch), or there is no GPU and it needs one.
    """
    if lacks := versions.lacking("torch") or [*config.section.lacking().values()]:
        raise Unsupported(lacks)
    machine.wait_patiently(config.device)
    gc.disable()  # torch's import makes many objects and no garbage: a sixth of its time
    task = load(config.task)
    if config.device == "cpu" and not task.admits:
        require(config.attention, config.attention_case)
    import torch

    for module in task.imports:
        import_module(module)
    gc.enable()
    if config.device == "cuda" and not torch.cuda.is_available():
        require(config.attention, config.attention_case)
        raise Unsupported([f"no CUDA device is visible to torch {torch.__version__}"])
    return task


def memory_limit(run: RunRecord, apart: Callable[[], Collection[int]] = lambda: ()) -> Limit:
    """The limit on the host memory of this process of a run, as its profile says.

    Args:
        apart: the pids of the run's processes that this one has started, which watch themselves.
    """
    return Limit(run.memory_bytes, run.limit_of_memory, gpu=run.config.device == "cuda", apart=apart)
