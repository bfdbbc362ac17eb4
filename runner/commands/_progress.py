"""Progress of the local queue: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from model.record.imported import ImportedStep
from model.record.outcome import Outcome
from model.record.records import StepRecord
from model.record.units import clock
from runner.commands._console import say
from runner.commands._forecast import Forecast
from runner.execute.local import Watcher
from runner.job.phase import Stage
from runner.state.tasks import Task

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


def watcher(forecast: Forecast | None = None, fail_fast: bool = False) -> Watcher:
    """Choose bars if standard error is a terminal, else plain lines.

    Args:
        forecast: estimates the queue's time left.
        fail_fast: start no more runs after one that ended unexpectedly.
    """
    return (Bar if sys.stderr.isatty() else Lines)(forecast, fail_fast)


def verdict(outcome: Outcome, expected: Outcome) -> str:
    """`completed`, `oom_gpu (as expected)`, `failed (expected completed)`."""
    if outcome is expected is Outcome.COMPLETED:
        return str(outcome)
    return f"{outcome} ({'as expected' if outcome is expected else f'expected {expected}'})"


class Lines(Watcher):
    """One line when a run starts, at each tenth of it, and when it ends."""

    def __init__(self, forecast: Forecast | None = None, fail_fast: bool = False) -> None:
        self.forecast, self.fail_fast, self.foretold = forecast, fail_fast, False
        self.total = self.begun = 0
        self.numbers: dict[Path, int] = {}
        self.tenths: dict[Path, int] = {}

    def queued(self, tasks: Sequence[Task]) -> None:
        """Remember the total for the `[1/6]` prefix."""
        self.total = len(tasks)
        if self.forecast:
            self.forecast.queued(task.folder.path.name for task in tasks)

    def line(self, task: Task, text: str) -> None:
        """Print a line that starts with the run's number and name."""
        say(self.named(task, text))

    def named(self, task: Task, text: str) -> str:
        """`[1/6] flash seed=0: started`."""
        return f"[{self.numbers[task.folder.path]}/{self.total}] {task.label}: {text}"

    def number(self, task: Task) -> None:
        """Count a run that starts."""
        self.begun += 1
        self.numbers[task.folder.path] = self.begun
        if self.forecast:
            self.forecast.started(task.folder.path.name, time.monotonic())

    def started(self, task: Task) -> None:
        """Number the run and print its attempt's folder."""
        self.number(task)
        self.line(task, f"started, {task.folder.attempt(task.attempt).path}")

    def certifying(self, task: Task, stage: Stage) -> None:
        """Print when a trial begins, every fifth stage after that, when it waits, and slow timing."""
        if stage.begun == 1 or stage.begun % 5 == 0 or stage.doing == "timing":
            self.line(task, str(stage))

    def stepped(self, task: Task, record: StepRecord) -> None:
        """Print progress at each tenth of the run, and once how long the queue's training takes."""
        self.foretell(task, record)
        tenth = 10 * record.step // task.steps
        if tenth > self.tenths.get(task.folder.path, 0):
            self.tenths[task.folder.path] = tenth
            self.line(task, progress_text(task, record))

    def foretell(self, task: Task, record: StepRecord) -> None:
        """Update the forecast; say the first one if several runs are to come."""
        if not self.forecast:
            return
        self.forecast.stepped(task.folder.path.name, record, time.monotonic())
        seconds = self.forecast.training_seconds
        if seconds is not None and not self.foretold and self.total > 1:
            self.foretold = True
            self.line(
                task,
                f"at this run's pace, the steps of all {self.total} runs will take about {clock(seconds)}",
            )

    def ended(self, task: Task, outcome: Outcome, reason: str | None) -> None:
        """Print the outcome, whether it was expected, the reason, and how much time is left."""
        self.stop_early |= self.fail_fast and outcome is not task.expected
        said = f"{verdict(outcome, task.expected)}{f': {reason}' if reason else ''}"
        if self.forecast:
            self.forecast.ended(task.folder.path.name, time.monotonic())
        self.line(task, said + self.left())

    def left(self) -> str:
        """`; about 0:12:00 left`, if runs are left and a pace is known."""
        seconds = self.forecast.seconds if self.forecast and not self.stop_early else None
        return f"; about {clock(seconds)} left" if seconds else ""


def progress_text(task: Task, record: StepRecord) -> str:
    """`step 30/60, loss 4.321, 12,345 tokens/s, 0:08 left`."""
    left = int((task.steps - record.step) * record.step_seconds)
    return f"{step_text(record, task.steps)}, {left // 60}:{left % 60:02} left"


def step_text(record: StepRecord | ImportedStep, steps: int) -> str:
    """`step 30/60, loss 4.321, 12,345 tokens/s`; without the loss where nothing is trained."""
    loss = ", loss not finite" if record.loss is None else f", loss {record.loss:.3f}"
    if record.loss is None and isinstance(record, StepRecord) and record.learning_rate is None:
        loss = ""
    rate = "" if record.tokens_per_second is None else f", {record.tokens_per_second:,.0f} tokens/s"
    return f"step {record.step}/{steps}{loss}{rate}"


class Bar(Lines):
    """Two bars: the queue, and the run with its step, loss, tokens/s and time left."""

    def __init__(self, forecast: Forecast | None = None, fail_fast: bool = False) -> None:
        super().__init__(forecast, fail_fast)
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self.bars: Progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[text]}", markup=False),
            TimeElapsedColumn(),
            console=Console(stderr=True),
        )
        self.rows: dict[Path, TaskID] = {}

    def queued(self, tasks: Sequence[Task]) -> None:
        """Show the queue's bar."""
        super().queued(tasks)
        self.all = self.bars.add_task("runs", total=self.total, text=f"0/{self.total}")
        self.bars.start()

    def line(self, task: Task, text: str) -> None:
        """Print above the bars."""
        self.bars.console.print(self.named(task, text), markup=False, highlight=False)

    def started(self, task: Task) -> None:
        """Add the run's bar."""
        self.number(task)
        self.rows[task.folder.path] = self.bars.add_task(task.label, total=task.steps, text="starting")

    def certifying(self, task: Task, stage: Stage) -> None:
        """Show the stages of the trial in the run's bar, which its steps take over."""
        row = self.rows[task.folder.path]
        self.bars.update(row, total=stage.total or None, completed=stage.begun, text=str(stage))

    def stepped(self, task: Task, record: StepRecord) -> None:
        """Move the run's bar."""
        self.foretell(task, record)
        row = self.rows[task.folder.path]
        self.bars.update(row, total=task.steps, completed=record.step, text=progress_text(task, record))

    def ended(self, task: Task, outcome: Outcome, reason: str | None) -> None:
        """Replace the run's bar with a line."""
        self.bars.remove_task(self.rows.pop(task.folder.path))
        super().ended(task, outcome, reason)
        done = self.begun - len(self.rows)
        self.bars.update(self.all, completed=done, text=f"{done}/{self.total}{self.left()}")

    def over(self) -> None:
        """Leave the bars as they are, and give the terminal its cursor back."""
        self.bars.stop()
