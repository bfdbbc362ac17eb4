"""Compare two studies, or one before and after a change: what changed, and whether it got worse.

A and B are studies of this workspace, folders ROOT/STUDY of others, or reports; STUDY@COMMIT takes only
the runs that were planned at a commit. B is compared with A. The exit code is 1 if B is shown to be slower by
more than the margin, to train to a different loss, or to end worse; otherwise 0.

Examples:
  runner compare backends ../main/runs/backends
  runner compare backends@a1b2c3d backends@e4f5a6b --margin tokens_per_second=2% --margin loss=0.005
  runner compare backends@a1b2c3d backends@e4f5a6b --html reports/build/change
  runner compare reports/published/backends-full-h200 backends --across device
  runner compare published mine --match fa3=flash3 --across device
"""

from __future__ import annotations

import dataclasses
import re
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from model.record.errors import UserError, did_you_mean, local_path
from model.record.units import counted
from runner.commands._console import print_json, say, show, table
from runner.commands._options import (
    AsJson,
    Removed,
    Replace,
    Settings,
    names_file,
    parse_margins,
    refuse_file_name,
    study_name,
)  # fmt: skip
from runner.inputs.settings import leaves

if TYPE_CHECKING:
    from analysis.verdicts.source import StudySource

Names = Annotated[
    list[str] | None,
    typer.Option(
        "--match", metavar="LABEL_A=LABEL_B", help="Treat these two groups as the same; repeatable."
    ),
]
Stated = Annotated[
    list[str] | None,
    typer.Option(
        "--margin",
        metavar="QUANTITY=VALUE",
        help="Too small to matter: tokens_per_second=2%, loss=0.005 (nats) [default: the studies' margins].",
    ),
]
Across = Annotated[
    list[str] | None,
    typer.Option(
        "--across",
        metavar="TOPIC",
        help="An intended difference, which withholds no verdict: host, device, software, data, "
        "a setting such as train.compile, or all; repeatable.",
    ),
]
SingleRuns = Annotated[
    bool,
    typer.Option(
        "--single-runs", help="Also test speed between single runs: says nothing beyond these two runs."
    ),
]
Strict = Annotated[
    bool,
    typer.Option("--strict", help="Also exit with 1 if nothing is established, or B lacks a group of A."),
]

Html = Annotated[
    Path | None,
    typer.Option(
        "--html",
        metavar="DIR",
        help="Also write it as a page, with its records for `runner audit`.",
        callback=refuse_file_name,
    ),
]


def command(
    a: Annotated[str, typer.Argument(metavar="A", help="What B is compared with, such as before a change.")],
    b: Annotated[
        str, typer.Argument(metavar="B", help="A study's name or file, ROOT/STUDY, STUDY@COMMIT, or report.")
    ],
    match: Names = None,
    margin: Stated = None,
    across: Across = None,
    single_runs: SingleRuns = False,
    strict: Strict = False,
    html: Html = None,
    removed: Removed = False,
    replace: Replace = False,
    as_json: AsJson = False,
) -> None:
    from analysis.several.pair import build_pair
    from analysis.verdicts.comparison import EVERYTHING, CompareOptions, compare
    from analysis.verdicts.guard import TOPICS
    from analysis.verdicts.sections import document, sections, summary
    from analysis.verdicts.source import read
    from runner.execute.reconcile import collected

    topics, valid = across or (), [*TOPICS, EVERYTHING, *leaves()]
    least = parse_margins(margin or ())
    for name in topics:
        if name not in valid:
            raise UserError(f"--across {name}: no such topic {did_you_mean(name, valid)}")
    options = CompareOptions(match or (), least, topics, single_runs)
    with ExitStack() as opened:
        before, after = (dataclasses.replace(_source(text, opened), removed=removed) for text in (a, b))
        if (before.root, before.study, before.commit) == (after.root, after.study, after.commit):
            raise UserError(f"{a} and {b} are the same runs: name another study, root or commit")
        for root, study in dict.fromkeys((source.root, source.study) for source in (before, after)):
            collected(root, study)
        for source in (before, after):
            if gone := source.left_out():
                what = f"{counted(len(gone), 'run')} that the study no longer has"
                say(f"{source.text}: without {what}; --removed includes {'it' if len(gone) == 1 else 'them'}")
        comparison = compare(*read(before, after), options)
        if html:
            say(f"written: {build_pair(before, after, options, html, replace=replace)}")
    if as_json:
        print_json(document(comparison))
    else:
        for section in sections(comparison):
            show(f"\n{section.title}")
            table(section.columns, section.rows)
    say(summary(comparison))
    raise typer.Exit(1 if comparison.regressions or (strict and comparison.unsettled) else 0)


def _source(text: str, opened: ExitStack) -> StudySource:
    """A study of this workspace, or of another one if it is given as a path; with a commit after `@`.

    A path is ROOT/STUDY, or ROOT if that has one study, or a report, whose runs get a workspace of their own.

    Raises:
        UserError: there is no such study.
    """
    from analysis.audit.restore import restore
    from analysis.report.carried import MANIFEST
    from analysis.store.database import studies
    from analysis.verdicts.source import StudySource

    where, at, commit = text.rpartition("@")
    if not at or "/" in commit:
        where, commit = text, ""
    if at and not re.fullmatch("[0-9a-f]{4,40}|", commit):
        raise UserError(f"{text}: write a commit after @, at least 4 digits of it as `git log` shows it")
    path = local_path(where)
    if names_file(where) or not ("/" in where or path.is_dir()) or where in studies(Settings.root):
        return StudySource(text, Settings.root, study_name(where, studies(Settings.root)), commit or None)
    path = path.absolute()
    if (path / MANIFEST).exists():
        root = Path(opened.enter_context(TemporaryDirectory(prefix="assay-report-")))
        return StudySource(text, root, restore(path, root).study, commit or None)
    if path.name in (beside := _studies(path.parent)):
        return StudySource(text, path.parent, path.name, commit or None)
    within = _studies(path)
    if len(within) == 1:
        return StudySource(text, path, within[0], commit or None)
    if within:
        raise UserError(
            f"{path} has several studies; name one: {', '.join(f'{path}/{name}' for name in within)}"
        )
    raise UserError(f"no runs of a study in {path}: expected ROOT/STUDY {did_you_mean(path.name, beside)}")


def _studies(root: Path) -> list[str]:
    """Names of the studies in a folder, which need not be a workspace, or in its database."""
    from analysis.store.database import studies

    return sorted({*(path.parent.parent.name for path in root.glob("*/*/run.json")), *studies(root)})
