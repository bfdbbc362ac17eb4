"""Progress of the local queue: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from model.disk.record import Outcome, StepRecord
from runner.commands._console import say
from runner.execute.local import Watcher
from runner.state.tasks import Task

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


def watcher() -> Watcher:
    """Choose bars if standard error is a terminal, else plain lines."""
    return Bar() if sys.stderr.isatty() else Lines()


def verdict(outcome: Outcome, expected: Outcome) -> str:
    """`completed`, `oom_gpu (as expected)`, `failed (expected completed)`."""
    if outcome is expected is Outcome.COMPLETED:
        return str(outcome)
    return f"{outcome} ({'as expected' if outcome is expected else f'expected {expected}'})"


class Lines(Watcher):
    """One line when a run starts, at each tenth of it, and when it ends."""

    def __init__(self) -> None:
        self.total = self.begun = 0
        self.numbers: dict[str, int] = {}
        self.tenths: dict[str, int] = {}

    def queued(self, total: int) -> None:
        """Remember the total for the `[1/6]` prefix."""
        self.total = total

    def line(self, task: Task, text: str) -> None:
        """Print a line that starts with the run's number and name."""
        say(f"[{self.numbers[str(task.folder.path)]}/{self.total}] {task.label}: {text}")

    def started(self, task: Task) -> None:
        """Number the run and print its attempt's folder."""
        self.begun += 1
        self.numbers[str(task.folder.path)] = self.begun
        self.line(task, f"started, {task.folder.attempt(task.attempt).path}")

    def stepped(self, task: Task, record: StepRecord) -> None:
        """Print progress at each tenth of the run."""
        tenth = 10 * record.step // task.steps
        if tenth > self.tenths.get(str(task.folder.path), 0):
            self.tenths[str(task.folder.path)] = tenth
            self.line(task, progress_text(task, record))

    def ended(self, task: Task, outcome: Outcome, reason: str | None) -> None:
        """Print the outcome, whether it was expected, and the reason."""
        self.line(task, f"{verdict(outcome, task.expected)}{f': {reason}' if reason else ''}")


def progress_text(task: Task, record: StepRecord) -> str:
    """`step 30/60, loss 4.321, 12,345 tokens/s, 0:08 left`."""
    rate = record.tokens / record.steps / record.step_seconds
    left = int((task.steps - record.step) * record.step_seconds)
    loss = "not finite" if record.loss is None else f"{record.loss:.3f}"
    done = f"step {record.step}/{task.steps}, loss {loss}"
    return f"{done}, {rate:,.0f} tokens/s, {left // 60}:{left % 60:02} left"


class Bar(Lines):
    """Two bars: the queue, and the run with its step, loss, tokens/s and time left."""

    def __init__(self) -> None:
        super().__init__()
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self.bars: Progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[text]}", markup=False),
            TimeElapsedColumn(),
            console=Console(stderr=True),
        )
        self.rows: dict[str, TaskID] = {}

    def queued(self, total: int) -> None:
        """Show the queue's bar."""
        super().queued(total)
        self.all = self.bars.add_task("runs", total=total, text=f"0/{total}")
        self.bars.start()

    def line(self, task: Task, text: str) -> None:
        """Print above the bars."""
        self.bars.console.print(
            f"[{self.numbers[str(task.folder.path)]}/{self.total}] {task.label}: {text}",
            markup=False,
            highlight=False,
        )

    def started(self, task: Task) -> None:
        """Add the run's bar."""
        self.begun += 1
        self.numbers[str(task.folder.path)] = self.begun
        self.rows[str(task.folder.path)] = self.bars.add_task(task.label, total=task.steps, text="starting")

    def stepped(self, task: Task, record: StepRecord) -> None:
        """Move the run's bar."""
        self.bars.update(
            self.rows[str(task.folder.path)], completed=record.step, text=progress_text(task, record)
        )

    def ended(self, task: Task, outcome: Outcome, reason: str | None) -> None:
        """Replace the run's bar with a line."""
        self.bars.remove_task(self.rows.pop(str(task.folder.path)))
        super().ended(task, outcome, reason)
        done = self.begun - len(self.rows)
        self.bars.update(self.all, completed=done, text=f"{done}/{self.total}")
        if done == self.total:
            self.bars.stop()
