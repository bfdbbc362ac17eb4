"""Remove files that can be rebuilt or are no longer needed; never results."""

from __future__ import annotations

from typing import Annotated

import typer

from runner.commands._console import say, table
from runner.commands._options import Settings, refuse_empty_name, study_name


def command(
    study: Annotated[
        str | None,
        typer.Argument(metavar="STUDY", help="A study's name, or its file.", callback=refuse_empty_name),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be removed; remove nothing.")
    ] = False,
) -> None:
    from runner.execute import clean
    from runner.execute.reconcile import reconciled

    root, name = Settings.root, study and study_name(study)
    reconciled(root, name)
    items = clean.plan(root, name)
    table(["path", "bytes", "inodes", "reason"], clean.rows(root, items))
    if dry_run:
        say(clean.summary(items, "would free"))
    else:
        say(clean.summary(clean.remove(root, items), "freed"))
