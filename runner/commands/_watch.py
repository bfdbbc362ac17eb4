"""Rebuilds a report as the runs of its study end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from model.record.errors import AssayError
from runner.commands._console import say

_PAGES_LOOK_SECONDS = 2.0  # a page that is open costs nothing on the machine that trains


class Build(Protocol):
    """Builds the report and returns its first page."""

    def __call__(self, *, reload_seconds: float | None = None) -> Path: ...


def watch(root: Path, study: str, build: Build, every_seconds: float, pause: Callable[[float], None]) -> None:
    """Collect and build until every run has an outcome; the caller then builds once more, for good.

    If Ctrl-C or an error ends it early, the pages no longer reload themselves. If it is killed, the pages
    notice that its signs of life have stopped, and say so.
    """
    from analysis.report.live import awaited, sign
    from runner.execute.collected import collected

    first: Path | None = None
    try:
        while True:
            done = collected(root, study)
            waiting, runs = awaited(root, study)
            if not waiting:
                return
            if done.updated or not first:
                first = build(reload_seconds=_PAGES_LOOK_SECONDS)
                say(f"{first}: {runs - waiting} of {runs} runs have ended; Ctrl-C stops watching")
            sign(first.parent, every_seconds)
            pause(every_seconds)
    except BaseException:
        if first:
            _for_good(build, first.parent)
        raise


def _for_good(build: Build, report: Path) -> None:
    """Build it once more; if that fails, for example without a root, keep the last build."""
    from analysis.report.live import unmark

    try:
        build()
    except (AssayError, OSError) as error:
        unmark(report)
        say(f"keeping the last build of the report: {error}")
