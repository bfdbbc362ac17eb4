"""Rebuild a report from the records that it carries, by this code, and list what does not match.

It proves that the pages follow from the records, not that the code or the sentences are right.

Exit code 0: all match; 1: something does not; 2: not a report that can be audited. Needs no network and no
run folders.

Examples:
  runner audit reports/build/first
  runner audit reports/build/first --json
  runner --root runs audit reports/build/first --folders
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from model.record.units import counted, visible
from runner.commands._console import print_json, say, show
from runner.commands._options import AsJson, Settings, Timeout

_SHOWN = 100  # findings
_PROVES = (
    "a match proves that the pages follow from the report's records by this code, not that the code or the "
    "sentences are right"
)


def command(
    report: Annotated[
        Path,
        typer.Argument(
            metavar="REPORT", help="The folder that `runner report` wrote, a page in it, or the study."
        ),
    ],
    folders: Annotated[
        bool,
        typer.Option("--folders", help="Also check the records against the run folders under --root."),
    ] = False,
    timeout: Timeout = 600,
    memory: Annotated[
        float,
        typer.Option("--memory", metavar="GIB", min=1, max=4096, help="Use at most this much memory."),
    ] = 16,
    as_json: AsJson = False,
) -> None:
    from analysis.query.child import in_child

    # A report may come from others: whatever its queries and records make DuckDB do must end.
    in_child(lambda: _audit(report, folders, as_json), timeout, int(memory * 2**30), "audit")


def _audit(report: Path, folders: bool, as_json: bool) -> int:
    """Audit a report, print what does not match, and return the exit code."""
    from analysis.audit.audit import audit

    folder, usual = report, Path("reports/build") / report
    if report.is_file():  # one of its pages
        folder = report.parent
    elif usual.is_dir() and not report.exists():
        folder = usual
    result = audit(folder, Settings.root if folders else None)
    if as_json:
        print_json({"report": report, "match": not result.findings, **vars(result)})
        return 1 if result.findings else 0
    say(_PROVES)
    for note in result.notes:
        say(note)
    for finding in result.findings[:_SHOWN]:
        show(visible(str(finding)))  # someone else's report may contain terminal control codes
    if len(result.findings) > _SHOWN:
        show(f"... and {len(result.findings) - _SHOWN:,} more; --json lists all")
    skipped = f"; {result.skipped:,} were not, because page layouts have changed" if result.skipped else ""
    compared = (
        f"{counted(result.numbers, 'number')} in {counted(result.files, 'file')} were compared{skipped}"
    )
    count = len(result.findings)
    differ = "1 thing does not match" if count == 1 else f"{count:,} things do not match"
    partly = "everything compared matches its records, but not everything could be compared"
    match = partly if result.notes or result.skipped else "all match its records"
    say(f"{report}: {compared}: {differ if count else match}")
    return 1 if count else 0
