"""Print the output of a run's latest attempt, its loss about every tenth of the run, and how it ended."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from model.disk.files import read_lines
from model.disk.record import StepRecord
from runner.commands._console import say, show
from runner.commands._options import RunName, Settings
from runner.commands._progress import step_text
from runner.state.ledger import RunState, brief_state
from runner.state.runs import find, name_of
from runner.state.slurm import SchedulerError

POLL_SECONDS = 0.5
ASK_SECONDS = 15.0  # between questions that read the whole study, or ask Slurm


def command(
    run: RunName,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing until the run ends.")] = False,
) -> None:
    state, read, due = find(Settings.root, run), dict[Path, int](), time.monotonic()
    while True:
        over = state.phase == "ended"  # before the last output is read
        for name in ("stdout.log", "stderr.log"):
            _print_new(state.folder.attempt(state.attempt).path / name, read)
        if over or not follow:
            break
        time.sleep(POLL_SECONDS)
        if time.monotonic() >= due:
            _find_out(state)
            due = time.monotonic() + ASK_SECONDS
        state = brief_state(state.folder)
    for line in losses(state):
        show(line)
    reason = f": {state.reason}" if state.reason else ""
    say(f"{name_of(state)} attempt {state.attempt}: {state.outcome or state.phase}{reason}")


def losses(state: RunState) -> Iterator[str]:
    """A line for the attempt's first step record, the first in each tenth of the run, and the last."""
    records = read_lines(state.folder.attempt(state.attempt).path / "steps.jsonl", StepRecord)
    shown = {10 * record.step // state.brief.steps: record for record in reversed(records)}
    for record in dict.fromkeys([*reversed(shown.values()), *records[-1:]]):
        yield step_text(record, state.brief.steps)


def _find_out(state: RunState) -> None:
    """Record how the run ended, if it could not do so itself: its files alone would never tell."""
    from runner.execute.reconcile import reconciled
    from runner.execute.repair import orphaned

    if state.job_id or orphaned(state):
        with suppress(SchedulerError):  # its output can still be followed
            reconciled(Settings.root, state.brief.study)


def _print_new(path: Path, read: dict[Path, int]) -> None:
    """Print what was written since the last call; `read` has the number of bytes printed from each file."""
    if path.exists():
        with path.open("rb") as file:
            file.seek(read.get(path, 0))
            content = file.read()
        read[path] = read.get(path, 0) + len(content)
        sys.stdout.write(content.decode("utf-8", "replace"))
        sys.stdout.flush()
