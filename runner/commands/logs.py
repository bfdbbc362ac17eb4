"""Print the output of a run's latest attempt, and how it ended."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from runner.commands._console import say
from runner.commands._options import RunName, Settings
from runner.state.ledger import brief_state
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
    reason = f": {state.reason}" if state.reason else ""
    say(f"{name_of(state)} attempt {state.attempt}: {state.outcome or state.phase}{reason}")


def _print_new(path: Path, read: dict[Path, int]) -> None:
    """Print what was written since the last call; `read` has the number of bytes printed from each file."""
    if path.exists():
        with path.open("rb") as file:
            file.seek(read.get(path, 0))
            content = file.read()
        read[path] = read.get(path, 0) + len(content)
        sys.stdout.write(content.decode("utf-8", "replace"))
        sys.stdout.flush()
