"""What an executor is given."""

from __future__ import annotations

from dataclasses import dataclass

from model.record import Outcome, RunBrief, RunFolder, RunRecord, StepRecord


@dataclass(frozen=True)
class Shape:
    """What a run asks of a machine beside its GPUs; runs of one array ask for the same."""

    memory_bytes: int | None
    time_limit_seconds: int | None
    cpus: int | None

    @classmethod
    def of(cls, run: RunRecord) -> Shape:
        """As the run was planned."""
        return cls(run.memory_bytes, run.time_limit_seconds, run.cpus)


@dataclass(frozen=True)
class Task:
    """One claimed attempt of one run."""

    folder: RunFolder
    attempt: int
    label: str
    steps: int
    shape: Shape
    code: str | None = None  # hash of the snapshot that it runs, None: what is installed


class Watcher:
    """Told of what happens in the queue. This one says nothing."""

    def started(self, task: Task) -> None:
        """A run's process was started."""

    def stepped(self, task: Task, record: StepRecord) -> None:
        """A run wrote a step record."""

    def ended(self, task: Task, outcome: Outcome, reason: str | None) -> None:
        """A run's process is gone, and this is how it ended."""


def label(run: RunRecord | RunBrief) -> str:
    """A run for a person: the values of its factors."""
    return (
        " ".join(
            f"{value}" if axis == "attention" else f"{axis}={value}" for axis, value in run.factors.items()
        )
        or run.run_id
    )
