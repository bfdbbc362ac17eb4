"""Build a study's report pages, which open offline, from its current results.

Examples:
  runner report first
  runner report first --out pages
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from runner.commands._console import show
from runner.commands._options import Settings, study_name


def command(
    study: Annotated[str, typer.Argument(metavar="STUDY", help="A study's name, or its file.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Output folder [default: reports/build/STUDY].")
    ] = None,
) -> None:
    from analysis.report.build import build_report
    from analysis.store.collect import collect
    from analysis.store.database import studies
    from runner.execute.reconcile import reconciled

    root = Settings.root
    name = study_name(study, studies(root))
    reconciled(root, name)
    collect(root, name)
    show(build_report(root, name, out or Path("reports/build") / name))
