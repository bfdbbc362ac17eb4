"""What an executor is given: tasks, one for each attempt to start."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from model.disk.folder import RunFolder
from model.disk.record import Outcome, RunRecord
from runner.state.brief import RunBrief


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
    expected: Outcome = Outcome.COMPLETED


def label(run: RunRecord | RunBrief) -> str:
    """A run for a person: the values of its factors."""
    return (
        " ".join(
            f"{value}" if axis == "attention" else f"{axis}={value}" for axis, value in run.factors.items()
        )
        or run.run_id
    )


def jobs_folder(study: Path) -> Path:
    """Where submitit keeps its files of a study's jobs."""
    return study / ".submitit"
