"""Build a study's report pages, which open offline, from its current results.

Of several studies, or a folder of them, there is one front page, and a chapter for each.

Examples:
  runner report first
  runner report first second
  runner report experiments/seeds/001 --latex
  runner report first --out pages
  runner report first --no-records
  runner report first --watch
  runner report first --figures svg,pdf,png
  runner report --index reports/build
  runner report first --latex
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol

import typer

from model.record.errors import AssayError, UserError, did_you_mean, local_path
from model.record.files import Unreadable
from model.record.folder import study_record
from runner.commands._console import say, show
from runner.commands._options import (
    Removed,
    Replace,
    Settings,
    command_prefix,
    names_file,
    refuse_file_name,
    several_studies,
)
from runner.execute import queue

if TYPE_CHECKING:
    from analysis.drawings import Format

_WORTH_SAYING = 25 * 2**20  # bytes
PAGES_LOOK_SECONDS = 2.0  # a page that is open costs nothing on the machine that trains


def command(
    context: typer.Context,
    studies: Annotated[
        list[str] | None,
        typer.Argument(metavar="STUDY", help="A study's name or file, several, or a folder of files."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="Output folder [default: reports/build/STUDY].", callback=refuse_file_name
        ),
    ] = None,
    records: Annotated[
        bool,
        typer.Option(
            "--records/--no-records",
            help="Include the records from which `runner audit` recomputes every number.",
        ),
    ] = True,
    watching: Annotated[
        bool,
        typer.Option(
            "--watch",
            "-w",
            help="Rebuild as runs end, until all have ended; open pages reload themselves.",
        ),
    ] = False,
    every: Annotated[
        float, typer.Option(min=1, metavar="SECONDS", help="With --watch: how often to look at the runs.")
    ] = 30,
    logs: Annotated[
        bool,
        typer.Option(
            "--logs/--no-logs", help="Quote the last lines that runs printed, which may contain secrets."
        ),
    ] = True,
    figures: Annotated[
        str,
        typer.Option(
            "--figures",
            metavar="FORMATS",
            help="Figure formats, from svg, pdf and png. PDF and PNG are 6.9 and 3.3 inches wide.",
        ),
    ] = "svg,pdf",
    index: Annotated[
        Path | None,
        typer.Option("--index", metavar="DIR", help="Instead, list the reports in this folder."),
    ] = None,
    latex: Annotated[
        bool,
        typer.Option("--latex", help="Also write latex/: tables, figures, numbers by name, and report.tex."),
    ] = False,
    removed: Removed = False,
    replace: Replace = False,
) -> None:
    from analysis.report.build import build_report
    from analysis.report.carried import RECORDS
    from analysis.several.index import build_chapters, build_index
    from analysis.store.database import studies as collected_studies
    from analysis.writeup.write import write
    from runner.execute.reconcile import collected

    if (not studies) == (index is None):
        raise UserError("name a study, or with --index a folder of reports")
    if index is not None:
        others = [
            param.opts[0]
            for param in context.command.params
            if param.expose_value and param.name != "index" and _given(context, param.name or "")
        ]
        if others:  # they would have no effect
            raise UserError(f"--index takes no other option: leave out {', '.join(others)}")
        show(build_index(index))
        return
    assert studies
    formats = figure_formats(figures)
    if _given(context, "every") and not watching:
        raise UserError("--every sets how often --watch looks: add --watch")
    root = Settings.root
    names = several_studies(studies, collected_studies(root))
    for name in names:
        for line in queue.describe_waiting(root, name):
            say(line)
    _say_outdated(root, studies, names)
    whole = Path(studies[0]).resolve().name if len(studies) == 1 and len(names) > 1 else "+".join(names)
    folder = out or Path("reports/build") / whole
    build = partial(
        build_report,
        root,
        records=records,
        logs=logs,
        figures=formats,
        extra=write if latex else None,
        removed=removed,
        replace=replace,
    )
    if watching and len(names) > 1:
        raise UserError("--watch takes one study: watch each by itself")
    if watching:
        watch(root, names[0], partial(build, names[0], folder), every, time.sleep)
    for name in names:
        collected(root, name)
    if len(names) > 1:
        page = build_chapters(folder, {name: partial(build, name) for name in names})
    else:
        page = build(names[0], folder)
    carried = sum(path.stat().st_size for path in page.parent.glob(f"**/{RECORDS}/*"))
    if carried > _WORTH_SAYING:
        say(f"the report carries {carried / 2**20:,.0f} MiB of records; --no-records leaves them out")
    show(page)


def _say_outdated(root: Path, given: Sequence[str], names: Sequence[str]) -> None:
    """Say what changed in the files, those given or else those launched, and is not on the pages."""
    from runner.inputs.study import read_study
    from runner.plan import edits

    files = {read_study(path).name: path for path in map(local_path, filter(names_file, given))}
    for name in names:
        with suppress(
            UserError, Unreadable
        ):  # a launch says what is wrong with the file, a collect of the record
            record = study_record(root, name)
            if path := files.get(name) or (record and Path(record.file)):
                for line in edits.describe_outdated(read_study(path), root, command_prefix()):
                    say(line)


def _given(context: typer.Context, name: str) -> bool:
    """Whether a user has typed this option."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def figure_formats(text: str) -> tuple[Format, ...]:
    """The formats of `svg,pdf`, in the order in which they are written.

    Raises:
        UserError: there is no such format, or something else than a comma parts them.
    """
    from analysis.drawings import FORMATS

    words = [word.strip() for word in text.split(",")]
    for word in words:
        if " " in word or not word:
            raise UserError("separate formats with commas: --figures svg,pdf,png")
        if word not in FORMATS:
            raise UserError(f"no such figure format '{word}' {did_you_mean(word, FORMATS)}")
    return tuple(form for form in FORMATS if form in words)


class ReportBuilder(Protocol):
    """Builds the report."""

    def __call__(self, *, reload_seconds: float | None = None) -> Path:
        """Build it and return its first page."""


def watch(
    root: Path, study: str, build: ReportBuilder, every_seconds: float, pause: Callable[[float], None]
) -> None:
    """Collect and build until every run has an outcome; the caller then builds once more, for good.

    If Ctrl-C or an error ends it early, the pages no longer reload themselves. If it is killed, the pages
    notice that its signs of life have stopped, and say so.
    """
    from analysis.report.live import awaited, sign, unmark
    from runner.execute.reconcile import collected

    first: Path | None = None
    try:
        while True:
            summary = collected(root, study)
            waiting, runs = awaited(root, study)
            if not waiting:
                return
            if summary.updated or not first:
                first = build(reload_seconds=PAGES_LOOK_SECONDS)
                say(f"{first}: {runs - waiting} of {runs} runs have ended; Ctrl-C stops watching")
            sign(first.parent, every_seconds)
            pause(every_seconds)
    except BaseException:
        if first:
            try:
                build()  # for good
            except (AssayError, OSError) as error:  # such as without a root
                unmark(first.parent)
                say(f"keeping the last build of the report: {error}")
        raise
