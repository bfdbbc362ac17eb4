"""What an executor receives: each run's next attempt, the resources it requests, and its label."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from model.record.config import ParallelConfig
from model.record.folder import Attempt, RunFolder
from model.record.outcome import Outcome
from model.record.records import RunRecord
from runner.state.ledger import RunBrief
from runner.state.runs import name_of_folder


@dataclass(frozen=True)
class JobShape:
    """The resources that a run requests; the same for all runs of a job array.

    Attributes:
        memory_bytes, cpus: per process.
        processes: number of processes of the run, each with a GPU if it uses any.
    """

    memory_bytes: int | None
    time_limit_seconds: int | None
    cpus: int | None
    processes: int = 1

    @classmethod
    def of(cls, run: RunRecord) -> JobShape:
        """The resources that the run was planned with."""
        return cls(run.memory_bytes, run.time_limit_seconds, run.cpus, run.config.processes)


@dataclass(frozen=True)
class NextAttempt:
    """An attempt to start: the next one of its run.

    Attributes:
        parallel: its processes, if they differ from the run's own.
    """

    folder: RunFolder
    number: int
    label: str
    steps: int
    shape: JobShape
    code: str | None = None  # hash of its code snapshot; None: the installed code
    expected: Sequence[Outcome] = (Outcome.COMPLETED,)
    position: int = 0  # in the order of starting
    parallel: ParallelConfig | None = None

    @property
    def record(self) -> Attempt:
        """The attempt as its files are by now."""
        return self.folder.attempt(self.number)

    @property
    def name(self) -> str:
        """`STUDY/RUN`, its run's name."""
        return name_of_folder(self.folder.path)

    @property
    def removed(self) -> str | None:
        """A sentence if somebody removed the run's folder since it was written; None if it is there."""
        if (self.folder.path / "run.json").exists():
            return None
        return f"its folder {self.folder.path} was removed: launch the study again to plan it anew"


def label(run: RunRecord | RunBrief, axes: Iterable[str] | None = None) -> str:
    """A run's readable name: its factors by their short names, or its id if it has none.

    Args:
        axes: only these factors.
    """
    factors, again = {**run.factors, "repeat": run.repeat}, ("repeat",) if run.repeat > 1 else ()
    last = {axis: axis.rpartition(".")[2] for axis in factors}
    short = {axis: name if [*last.values()].count(name) == 1 else axis for axis, name in last.items()}
    named = (
        f"{factors[axis]}" if axis == "attention" else f"{short[axis]}={factors[axis]}"
        for axis in ((*run.factors, *again) if axes is None else axes)
        if axis in factors
    )
    return " ".join(named) or run.run_id


def jobs_folder(study: Path) -> Path:
    """Where submitit keeps its files for a study's jobs."""
    return study / ".submitit"
