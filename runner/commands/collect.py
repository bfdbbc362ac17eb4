"""Load the records of run folders into the database, with those of an archive or a report if given one.

An archive of `export` is unpacked into run folders. Of a report, whose runs' files are elsewhere or gone, the
records come into the database alone.

Examples:
  runner collect
  runner --root elsewhere collect exports/first/first.tar.gz
  runner --root elsewhere collect reports/build/first
  runner collect --rebuild
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from model.record.errors import UserError, local_path
from model.record.units import counted
from runner.commands._console import say, show
from runner.commands._options import Settings, named, study_name
from runner.state.runs import study_names


def command(
    study: Annotated[
        str | None,
        typer.Argument(
            metavar="STUDY",
            help="A study's name or file; an archive or report of its runs.",
            callback=named,
        ),
    ] = None,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Rebuild the database from the run folders alone.")
    ] = False,
) -> None:
    from analysis.export.restore import restore
    from analysis.export.unpack import SUFFIXES, unpack
    from analysis.report.carried import MANIFEST
    from analysis.store.database import NAME, database, studies
    from analysis.wording import listed
    from runner.execute.reconcile import collected

    root = Settings.root
    if rebuild and study:
        raise UserError("--rebuild discards the database with all its studies: leave out STUDY")
    if study and study.endswith(SUFFIXES):  # an archive of runs
        brought = unpack(local_path(study), root)
        name: str | None = brought.study
        kept = f", {brought.there} were already there" if brought.there else ""
        more = f", {brought.continued} went on from the records that were there" if brought.continued else ""
        runs = f"{counted(brought.added, 'run')} of study {name} unpacked{more}{kept}"
        say(f"{study}: {runs}; {counted(brought.certificates, 'new certificate')}")
    elif study and (Path(study) / MANIFEST).is_file() and study not in {*study_names(root), *studies(root)}:
        restored = restore(local_path(study), root)
        name = restored.study
        kept = f", {restored.there} were already there" if restored.there else ""
        say(f"{study}: {counted(restored.added, 'run')} of study {name} added to the database{kept}")
        if restored.others:
            say(f"kept as they are here, with other records: {listed(restored.others)}")
    else:
        name = study and study_name(study, studies(root))
    collection = collected(root, name, rebuild)
    if database(root) != root / NAME:
        raise UserError(
            f"{root} cannot be written to, so nothing was collected there; "
            "report, compare, export and sql read it all the same"
        )
    say(f"{counted(collection.updated, 'run')} read, {collection.unchanged} unchanged")
    if collection.quarantined:
        say(f"{counted(collection.quarantined, 'file')} could not be read; see: runner sql 'from quarantine'")
    show(database(root))
