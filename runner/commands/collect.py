"""Load the records of run folders into the database, with those of an archive or a report if given one.

An archive of `export` is unpacked into run folders. Of a report, whose run folders are elsewhere or gone, the
records are kept in ROOT/STUDY/.reports: its runs count like others, but cannot be continued.

Examples:
  runner collect
  runner --root elsewhere collect exports/first/first.tar.gz
  runner --root elsewhere collect reports/build/first
  runner collect --rebuild
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import Annotated

import typer

from model.record.errors import UserError, local_path
from model.record.units import counted
from runner.commands._console import say, show
from runner.commands._options import Settings, refuse_empty_name, study_name
from runner.state.runs import study_names


def command(
    study: Annotated[
        str | None,
        typer.Argument(
            metavar="STUDY",
            help="A study's name or file; an archive or report of its runs.",
            callback=refuse_empty_name,
        ),
    ] = None,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Rebuild the database from the run folders alone.")
    ] = False,
) -> None:
    from analysis.audit.restore import restore
    from analysis.export.unpack import SUFFIXES, unpack
    from analysis.store.database import NAME, database, studies
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
    elif study and (report := _report(study, {*study_names(root), *studies(root)})):
        restored = restore(report, root)
        name = restored.study
        own = f"; {restored.own} of them are here already, and stay as they are" if restored.own else ""
        earlier = ", which were collected before" if restored.again else ""
        say(f"{study}: {counted(restored.runs, 'run')} of study {name}{earlier}{own}")
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


def _report(given: str, names: Collection[str]) -> Path | None:
    """The folder of a report, which one of its pages names too; None if a study is given.

    Raises:
        UserError: it is a path to nothing, to a report that is packed, or to a folder around reports.
    """
    from analysis.report.carried import MANIFEST

    if given in names or (not os.path.lexists(given) and given.partition("/")[0] in {given, *names}):
        return None  # a study, or a run, whose name the error says
    path = local_path(given)
    folder = path.parent if path.suffix == ".html" else path
    if (folder / MANIFEST).exists():
        return folder
    if not path.exists():
        raise UserError(f"{given}: no such file or folder")
    if path.suffix == ".zip":
        raise UserError(f"{given}: unpack it, and name the folder of the report in it")
    if inner := sorted(str(manifest.parents[1]) for manifest in folder.glob(f"*/{MANIFEST}")):
        raise UserError(f"{given} has {counted(len(inner), 'report')} in it: name one, such as {inner[0]}")
    return None
