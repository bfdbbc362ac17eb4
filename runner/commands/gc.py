"""Remove files that can be rebuilt or are no longer needed; never results."""

from __future__ import annotations

from typing import Annotated

import typer

from runner.commands._console import say, table
from runner.commands._options import Settings, StudyName, study_name


def command(
    study: StudyName = None,
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
