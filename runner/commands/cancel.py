"""Cancel runs that are in flight."""

from __future__ import annotations

from typing import Annotated

import typer

from runner.commands._console import say
from runner.commands._options import Settings, is_file, study_name
from runner.state.runs import find, in_flight, study_names


def command(
    target: Annotated[
        str, typer.Argument(metavar="STUDY|RUN", help="A study's name or file, or a run: ID or STUDY/ID.")
    ],
) -> None:
    from runner.execute.cancel import cancel
    from runner.execute.reconcile import reconciled

    root = Settings.root
    if is_file(target) or target in study_names(root):
        found = reconciled(root, study_name(target))
    else:
        found = [find(root, target)]
    told = len(cancel(found))
    say(f"{told} of {len(found)} runs were in flight and are being cancelled")
    if told < len(in_flight(found)):
        raise typer.Exit(1)
