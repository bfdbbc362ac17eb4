"""What a person sees: tables on stdout, progress on stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from model.record import Outcome, StepRecord
from runner.tasks import Task, Watcher

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID
    from rich.table import Table


def say(text: str) -> None:
    """A line on stderr."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201  this is the one place that prints progress


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str | None = None) -> None:
    """A table on stdout: drawn on a terminal, aligned plain columns elsewhere, never cut."""
    if sys.stdout.isatty():
        from rich.console import Console

        Console().print(_drawn(columns, rows, title))
        return
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    line = "  ".join(f"{{:{width}}}" if width else "{}" for width in widths)  # half of ljust's time a cell
    sys.stdout.writelines(line.format(*row).rstrip() + "\n" for row in (columns, *rows))


def _drawn(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str | None = None) -> Table:
    from rich.markup import escape
    from rich.table import Table

    drawn = Table(*columns, title=title)
    for row in rows:
        drawn.add_row(*map(escape, row))
    return drawn


def _one_line_each(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[list[str]]:
    """The rows, each last cell cut to what the others leave of the width."""
    taken = sum(
        max(map(len, column)) for column in zip(columns[:-1], *(row[:-1] for row in rows), strict=True)
    )
    room = max(len(columns[-1]), width - taken - 3 * len(columns) - 1)
    return [[*row[:-1], row[-1] if len(row[-1]) <= room else f"{row[-1][: room - 1]}…"] for row in rows]


def live(columns: Sequence[str], pages: Iterator[tuple[list[list[str]], str]]) -> None:
    """A table on a terminal that is drawn anew in its place, as many rows as fit, until there are no more.

    Args:
        pages: the rows, the most interesting first, and a line that sums them up.
    """
    from rich.console import Group
    from rich.live import Live

    with Live(auto_refresh=False) as screen:
        for rows, summary in pages:
            fits = max(1, screen.console.height - 6)
            more = f", {len(rows) - fits} of them not shown" if len(rows) > fits else ""
            screen.update(
                Group(
                    _drawn(columns, _one_line_each(columns, rows[:fits], screen.console.width)),
                    summary + more,
                ),
                refresh=True,
            )


def watcher(total: int, expected: dict[str, Outcome]) -> Watcher:
    """A progress bar on a terminal, plain lines elsewhere.

    Args:
        total: runs in the queue.
        expected: how each run, by the path of its folder, is expected to end.
    """
    return Bar(total, expected) if sys.stderr.isatty() else Lines(total, expected)


class Lines(Watcher):
    """One line when a run starts, at each tenth of it, and when it ends."""

    def __init__(self, total: int, expected: dict[str, Outcome]) -> None:
        self.total, self.expected = total, expected
        self.begun = 0
        self.numbers: dict[str, int] = {}
        self.tenths: dict[str, int] = {}

    def line(self, task: Task, text: str) -> None:
        """Print one line about a run."""
        say(f"[{self.numbers[str(task.folder.path)]}/{self.total}] {task.label}: {text}")

    def started(self, task: Task) -> None:
        """Count it."""
        self.begun += 1
        self.numbers[str(task.folder.path)] = self.begun
        self.line(task, f"started, {task.folder.attempt(task.attempt)}")

    def stepped(self, task: Task, record: StepRecord) -> None:
        """Say it at each tenth of the run."""
        tenth = 10 * record.step // task.steps
        if tenth > self.tenths.get(str(task.folder.path), 0):
            self.tenths[str(task.folder.path)] = tenth
            self.line(task, progress_text(task, record))

    def ended(self, task: Task, outcome: Outcome, reason: str | None) -> None:
        """Say how, and whether that was expected."""
        wanted = self.expected[str(task.folder.path)]
        mark = (
            ""
            if outcome is wanted is Outcome.COMPLETED
            else " (as expected)"
            if outcome is wanted
            else f" (expected {wanted})"
        )
        self.line(task, f"{outcome}{mark}{f': {reason}' if reason else ''}")


def progress_text(task: Task, record: StepRecord) -> str:
    """`step 30/60, loss 4.321, 12,345 tokens/s, 0:08 left`."""
    rate = record.tokens / record.steps / record.step_seconds
    left = int((task.steps - record.step) * record.step_seconds)
    loss = "not finite" if record.loss is None else f"{record.loss:.3f}"
    done = f"step {record.step}/{task.steps}, loss {loss}"
    return f"{done}, {rate:,.0f} tokens/s, {left // 60}:{left % 60:02} left"


class Bar(Lines):
    """Two bars: the queue, and the run with its step, loss, tokens/s and time left."""

    def __init__(self, total: int, expected: dict[str, Outcome]) -> None:
        super().__init__(total, expected)
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
        """Put a line in the bar's place."""
        self.bars.remove_task(self.rows.pop(str(task.folder.path)))
        super().ended(task, outcome, reason)
        done = self.begun - len(self.rows)
        self.bars.update(self.all, completed=done, text=f"{done}/{self.total}")
        if done == self.total:
            self.bars.stop()
