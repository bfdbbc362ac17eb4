"""Progress of the local queue: bars on a terminal, plain lines elsewhere, and how much longer it takes."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median_low
from typing import TYPE_CHECKING

from model.measure.flops import of_run
from model.record.outcome import Outcome
from model.record.records import RunRecord, StepRecord
from model.record.units import clock
from runner.commands._console import say
from runner.commands._runs import step_text
from runner.execute.local import Watcher
from runner.job.phase import Stage
from runner.state.attempts import NextAttempt

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


def watcher(forecast: Forecast | None = None, fail_fast: bool = False) -> Watcher:
    """Choose bars if standard error is a terminal, else plain lines.

    Args:
        forecast: estimates the queue's time left.
        fail_fast: start no more runs after one that ended unexpectedly.
    """
    return (ProgressBars if sys.stderr.isatty() else ProgressLines)(forecast, fail_fast)


def verdict(outcome: Outcome, expected: Sequence[Outcome]) -> str:
    """`completed`, `oom_gpu (as expected)`, `failed (expected completed)`."""
    if outcome is Outcome.COMPLETED and outcome in expected:
        return str(outcome)
    return f"{outcome} ({'as expected' if outcome in expected else 'expected ' + ' or '.join(expected)})"


class ProgressLines(Watcher):
    """One line when a run starts, at each tenth of it, and when it ends."""

    def __init__(self, forecast: Forecast | None = None, fail_fast: bool = False) -> None:
        self.forecast, self.fail_fast, self.foretold = forecast, fail_fast, False
        self.total = self.begun = 0
        self.numbers: dict[Path, int] = {}
        self.tenths: dict[Path, int] = {}

    def queued(self, attempts: Sequence[NextAttempt]) -> None:
        """Remember the total for the `[1/6]` prefix."""
        self.total = len(attempts)
        if self.forecast:
            self.forecast.queued(attempt.folder.path.name for attempt in attempts)

    def line(self, attempt: NextAttempt, text: str) -> None:
        """Print a line that starts with the run's number and name."""
        say(self.numbered(attempt, text))

    def numbered(self, attempt: NextAttempt, text: str) -> str:
        """`[1/6] flash seed=0: started`."""
        return f"[{self.numbers[attempt.folder.path]}/{self.total}] {attempt.label}: {text}"

    def count_start(self, attempt: NextAttempt) -> None:
        """Count a run that starts, which gives it its number."""
        self.begun += 1
        self.numbers[attempt.folder.path] = self.begun
        if self.forecast:
            self.forecast.started(attempt.folder.path.name, time.monotonic())

    def started(self, attempt: NextAttempt) -> None:
        """Number the run and print its attempt's folder."""
        self.count_start(attempt)
        self.line(attempt, f"started, {attempt.record.path}")

    def certifying(self, attempt: NextAttempt, stage: Stage) -> None:
        """Print when a trial begins, every fifth stage after that, when it waits, and slow timing."""
        if stage.begun == 1 or stage.begun % 5 == 0 or stage.doing == "timing":
            self.line(attempt, str(stage))

    def stepped(self, attempt: NextAttempt, record: StepRecord) -> None:
        """Print progress at each tenth of the run, and once how long the queue's training takes."""
        self.foretell(attempt, record)
        tenth = 10 * record.step // attempt.steps
        if tenth > self.tenths.get(attempt.folder.path, 0):
            self.tenths[attempt.folder.path] = tenth
            self.line(attempt, progress_text(attempt, record))

    def foretell(self, attempt: NextAttempt, record: StepRecord) -> None:
        """Update the forecast; say the first one if several runs are to come."""
        if not self.forecast:
            return
        self.forecast.stepped(attempt.folder.path.name, record, time.monotonic())
        seconds = self.forecast.training_seconds
        if seconds is not None and not self.foretold and self.total > 1:
            self.foretold = True
            self.line(
                attempt,
                f"at this run's pace, the steps of all {self.total} runs will take about {clock(seconds)}",
            )

    def ended(self, attempt: NextAttempt, outcome: Outcome, reason: str | None) -> None:
        """Print the outcome, whether it was expected, the reason, and how much time is left."""
        self.stop_early |= self.fail_fast and outcome not in attempt.expected
        ending = f"{verdict(outcome, attempt.expected)}{f': {reason}' if reason else ''}"
        if self.forecast:
            self.forecast.ended(attempt.folder.path.name, time.monotonic())
        self.line(attempt, ending + self.time_left())

    def time_left(self) -> str:
        """`; about 0:12:00 left`, if runs are left and a pace is known."""
        seconds = self.forecast.seconds if self.forecast and not self.stop_early else None
        return f"; about {clock(seconds)} left" if seconds else ""


def progress_text(attempt: NextAttempt, record: StepRecord) -> str:
    """`step 30/60, loss 4.321, 12,345 tokens/s, 0:08 left`."""
    left = int((attempt.steps - record.step) * record.step_seconds)
    return f"{step_text(record, attempt.steps)}, {left // 60}:{left % 60:02} left"


class ProgressBars(ProgressLines):
    """Two bars: the queue, and the run with its step, loss, tokens/s and time left."""

    def __init__(self, forecast: Forecast | None = None, fail_fast: bool = False) -> None:
        super().__init__(forecast, fail_fast)
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
        from rich.table import Column

        console = Console(stderr=True)
        # By default rich would cut a text in the middle of a number where the terminal is narrow.
        self.bars: Progress = Progress(
            TextColumn("{task.description}", markup=False, table_column=Column(overflow="fold")),
            BarColumn(bar_width=max(4, min(40, console.width - 90))),
            TextColumn("{task.fields[text]}", markup=False, table_column=Column(overflow="fold")),
            TimeElapsedColumn(table_column=Column(min_width=len("0:00:00"))),
            console=console,
        )
        self.rows: dict[Path, TaskID] = {}

    def queued(self, attempts: Sequence[NextAttempt]) -> None:
        """Show the queue's bar."""
        super().queued(attempts)
        self.all = self.bars.add_task("runs", total=self.total, text=f"0/{self.total}")
        self.bars.start()

    def line(self, attempt: NextAttempt, text: str) -> None:
        """Print above the bars."""
        self.bars.console.print(self.numbered(attempt, text), markup=False, highlight=False)

    def started(self, attempt: NextAttempt) -> None:
        """Add the run's bar."""
        self.count_start(attempt)
        self.rows[attempt.folder.path] = self.bars.add_task(
            attempt.label, total=attempt.steps, text="starting"
        )

    def certifying(self, attempt: NextAttempt, stage: Stage) -> None:
        """Show the stages of the trial in the run's bar, which its steps take over."""
        row = self.rows[attempt.folder.path]
        self.bars.update(row, total=stage.total or None, completed=stage.begun, text=str(stage))

    def stepped(self, attempt: NextAttempt, record: StepRecord) -> None:
        """Move the run's bar."""
        self.foretell(attempt, record)
        row = self.rows[attempt.folder.path]
        self.bars.update(row, total=attempt.steps, completed=record.step, text=progress_text(attempt, record))

    def ended(self, attempt: NextAttempt, outcome: Outcome, reason: str | None) -> None:
        """Replace the run's bar with a line."""
        self.bars.remove_task(self.rows.pop(attempt.folder.path))
        super().ended(attempt, outcome, reason)
        done = self.begun - len(self.rows)
        self.bars.update(self.all, completed=done, text=f"{done}/{self.total}{self.time_left()}")

    def over(self) -> None:
        """Leave the bars as they are, and give the terminal its cursor back."""
        self.bars.stop()


@dataclass
class _PacedRun:
    """A run of the queue: FLOP of a step in a process, steps, and when it started, in seconds."""

    step_flop: float
    steps: int
    steps_done: int = 0
    started: float | None = None
    stepped: bool = False
    ended: bool = False

    @classmethod
    def of(cls, run: RunRecord) -> _PacedRun:
        """The run before it starts."""
        section = run.config.section
        tokens = section.batch_size * section.sequence_length
        steps = 0 if run.expected_outcome.is_early else section.steps
        return cls(tokens * (of_run(run.config) or 1) / run.config.processes, steps)


class Forecast:
    """Estimates the time left: FLOP left at the newest pace, plus the usual time to start each run.

    Nothing is known before the second step of a run, because its first step includes warming up.

    Args:
        runs: the runs that the queue may hold.
        parallel: how many of them run at once.
    """

    def __init__(self, runs: Sequence[RunRecord], parallel: int) -> None:
        self.parallel = parallel
        self.runs = {run.run_id: _PacedRun.of(run) for run in runs}
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
