"""Write a study's tables and a data dictionary, and its run folders as an archive for `collect`.

OUT/tables/NAME.parquet has the study's rows of each table and view; OUT/dictionary.csv describes each column
and its unit; OUT/datapackage.json describes both as a Frictionless Data Package; OUT/STUDY.tar.gz has the run
folders and certificates. These name hosts, users and paths. Checkpoints are left out. So are logs and
uncommitted changes unless asked for, because they may contain what others must not read.

Examples:
  runner export first
  runner export first --out shared --logs
  runner export experiments/seeds/003
  runner --root elsewhere collect shared/first.tar.gz
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from model.record.folder import folders
from model.record.units import counted
from runner.commands._console import say, show
from runner.commands._options import Replace, Settings, refuse_file_name, several_studies

_IDS = "SELECT run_id FROM run_records WHERE study = $1 ORDER BY run_id"


def command(
    given: Annotated[
        list[str],
        typer.Argument(metavar="STUDY", help="A study's name or file, several, or a folder of files."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="Output folder, of several studies with a folder each [default: exports/STUDY].",
            callback=refuse_file_name,
        ),
    ] = None,
    logs: Annotated[bool, typer.Option("--logs", help="Include what the runs printed.")] = False,
    diffs: Annotated[
        bool, typer.Option("--diffs", help="Include the uncommitted changes in the code that runs used.")
    ] = False,
    replace: Replace = False,
) -> None:
    from analysis.export.pack import LeftOut, pack
    from analysis.export.tables import write_tables
    from analysis.store.database import open_for_reading, studies
    from runner.execute.reconcile import collected

    root = Settings.root
    names = several_studies(given, studies(root))
    for name in names:
        collected(root, name)
        folder = (out / name if len(names) > 1 else out) if out else Path("exports") / name
        with open_for_reading(root) as connection:
            write_tables(connection, name, folder, root, replace)
            ids = connection.execute(_IDS, [name]).fetchall()
        here = set(folders(root / name))
        left = pack(root, name, folder / f"{name}.tar.gz", logs, diffs) if here else LeftOut((), ())
        for runs, why in (
            ([run_id for (run_id,) in ids if run_id not in here], "no files here"),
            (left.in_flight, "in flight"),
            (left.unreadable, "no readable record"),
        ):
            if runs:
                left_out = f"{counted(len(runs), 'run')} left out of the archive ({why})"
                say(f"{left_out}: {', '.join(runs[:5])}")
        if not here:
            say("there is no archive, since no run has files here: give a report on as it is")
        show(folder)
