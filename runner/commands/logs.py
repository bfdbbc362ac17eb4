"""Print the output of a run's latest attempt, its loss about every tenth of the run, and how it ended."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
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

POLL_SECONDS = 0.5


def command(
    run: RunName,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing until the run ends.")] = False,
) -> None:
    folder = find(Settings.root, run).folder
    read: dict[Path, int] = {}
    while True:
        state = brief_state(folder)
        over = state.phase == "ended"
        for name in ("stdout.log", "stderr.log"):
            _print_new(state.folder.attempt(state.attempt).path / name, read)
        if over or not follow:
            break
        time.sleep(POLL_SECONDS)
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


def _print_new(path: Path, read: dict[Path, int]) -> None:
    """Print what was written since the last call; `read` has the number of bytes printed from each file."""
    if path.exists():
        with path.open("rb") as file:
            file.seek(read.get(path, 0))
            content = file.read()
        read[path] = read.get(path, 0) + len(content)
        sys.stdout.write(content.decode("utf-8", "replace"))
        sys.stdout.flush()
