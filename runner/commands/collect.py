"""Load the run folders' records into the database.

Examples:
  runner collect
  runner collect --rebuild
"""

from __future__ import annotations

from typing import Annotated

import typer

from runner.commands._console import say, show
from runner.commands._options import Settings, StudyName, study_name


def command(
    study: StudyName = None,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Rebuild the database from the run folders alone.")
    ] = False,
) -> None:
    from analysis.store.collect import collect
    from analysis.store.database import studies
    from runner.execute.reconcile import reconciled

    root = Settings.root
    name = study and study_name(study, studies(root))
    reconciled(root, name)
    done = collect(root, name, rebuild)
    say(f"{done.updated} runs read, {done.unchanged} unchanged")
    if done.quarantined:
        say(f"{done.quarantined} files could not be read; list them with: runner sql 'from quarantine'")
    show(root / "results.duckdb")
