"""How much longer a local queue takes, from the pace of its runs so far."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median_low

from model.measure.flops import of_run
from model.record.records import RunRecord, StepRecord


@dataclass
class _Run:
    """A run of the queue: FLOP of a step in a process, steps, and when it started, in seconds."""

    step_flop: float
    steps: int
    steps_done: int = 0
    started: float | None = None
    stepped: bool = False
    ended: bool = False


class Forecast:
    """Estimates the time left: FLOP left at the newest pace, plus the usual time to start each run.

    Nothing is known before the second step of a run, because its first step includes warming up.

    Args:
        runs: the runs that the queue may hold.
        parallel: how many of them run at once.
    """

    def __init__(self, runs: Sequence[RunRecord], parallel: int) -> None:
        self.parallel = parallel
        self.runs = {run.run_id: _planned(run) for run in runs}
        self.seconds_per_flop: float | None = None
        self.starts: list[float] = []

    def queued(self, run_ids: Iterable[str]) -> None:
        """Keep the runs that the queue holds."""
        self.runs = {run_id: self.runs[run_id] for run_id in run_ids}

    def started(self, run_id: str, now: float) -> None:
        """A run's process was started."""
        self.runs[run_id].started = now

    def stepped(self, run_id: str, record: StepRecord, now: float) -> None:
        """A run wrote a step record."""
        run = self.runs[run_id]
        if not run.stepped and run.started is not None:
            self.starts.append(max(0.0, now - run.started - record.steps * record.step_seconds))
        run.stepped = True
        run.steps_done = record.step
        if record.step > 1:
            self.seconds_per_flop = record.step_seconds / run.step_flop

    def ended(self, run_id: str, now: float) -> None:
        """A run's process has exited."""
        run = self.runs[run_id]
        if not run.stepped and run.started is not None:
            self.starts.append(now - run.started)
        run.ended = True

    @property
    def training_seconds(self) -> float | None:
        """Estimated seconds of steps that are left; None if no step was timed yet."""
        if self.seconds_per_flop is None:
            return None
        open_ = [run for run in self.runs.values() if not run.ended]
        flop = sum(max(0, run.steps - run.steps_done) * run.step_flop for run in open_)
        return flop * self.seconds_per_flop / self.parallel

    @property
    def seconds(self) -> float | None:
        """Estimated seconds until the queue is done; None if no step was timed yet."""
        if (training := self.training_seconds) is None:
            return None
        waiting = sum(run.started is None for run in self.runs.values())
        return training + waiting * median_low(self.starts or [0.0]) / self.parallel


def _planned(run: RunRecord) -> _Run:
    section = run.config.section
    tokens = section.batch_size * section.sequence_length
    steps = 0 if run.expected_outcome.is_early else section.steps
    return _Run(tokens * (of_run(run.config) or 1) / run.config.processes, steps)
