"""Load the records of run folders into the database, unpacking an archive from `export` first if given one.

Examples:
  runner collect
  runner --root elsewhere collect exports/first/first.tar.gz
  runner collect --rebuild
"""

from __future__ import annotations

from typing import Annotated

import typer

from model.record.errors import UserError, local_path
from model.record.units import counted
from runner.commands._console import say, show
from runner.commands._options import Settings, named, study_name


def command(
    study: Annotated[
        str | None,
        typer.Argument(
            metavar="STUDY", help="A study's name, its file, or an archive of its runs.", callback=named
        ),
    ] = None,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Rebuild the database from the run folders alone.")
    ] = False,
) -> None:
    from analysis.store.database import NAME, database, studies
    from runner.execute.reconcile import collected

    root = Settings.root
    if rebuild and study:
        raise UserError("--rebuild discards the database with all its studies: leave out STUDY")
    name = study and (_unpacked(study) or study_name(study, studies(root)))
    done = collected(root, name, rebuild)
    if database(root) != root / NAME:
        raise UserError(
            f"{root} cannot be written to, so nothing was collected there; "
            "report, compare, export and sql read it all the same"
        )
    say(f"{counted(done.updated, 'run')} read, {done.unchanged} unchanged")
    if done.quarantined:
        say(f"{counted(done.quarantined, 'file')} could not be read; see: runner sql 'from quarantine'")
    show(database(root))


def _unpacked(archive: str) -> str | None:
    """The study whose runs an archive has brought; None if it is not an archive."""
    from analysis.export.unpack import SUFFIXES, unpack

    if not archive.endswith(SUFFIXES):
        return None
    done = unpack(local_path(archive), Settings.root)
    there = f", {done.there} were already there" if done.there else ""
    runs = f"{counted(done.added, 'run')} of study {done.study} unpacked{there}"
    say(f"{archive}: {runs}; {counted(done.certificates, 'new certificate')}")
    return done.study
