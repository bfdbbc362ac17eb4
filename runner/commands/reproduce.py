"""Repeat a run with the same code, configuration and seed, and compare the results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from runner.commands._comparison import compare
from runner.commands._console import say, table
from runner.commands._options import ProfileName, RunName, Settings
from runner.commands._progress import watcher


def command(
    run: RunName,
    profile: ProfileName = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="A different root for the repeat.")] = None,
) -> None:
    from runner.execute import repeat

    prepared = repeat.prepare(Settings.root, run, out and out.absolute(), profile)
    say(f"repeating {repeat.title(prepared.original)} as {prepared.folder.path}")
    if prepared.state.phase == "planned":
        repeat.start(prepared, watcher())
    found = compare(prepared.original, repeat.wait_for(prepared))
    table(["", "then", "now", ""], found.rows)
    say(found.verdict)
    raise typer.Exit(0 if found.same_outcome else 1)
