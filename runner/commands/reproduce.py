"""Repeat a run with the same code, configuration and seed, and compare the results."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from runner.commands._console import say, table
from runner.commands._options import OtherProfile, RunName, Settings
from runner.commands._progress import watcher
from runner.job import tasks
from runner.job.tasks import DIFFERS, SAME, UNKNOWN, RepeatRow
from runner.state.code import provenance
from runner.state.ledger import RunState
from runner.state.runs import name_of


def command(
    run: RunName,
    profile: OtherProfile = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="A different root for the repeat.")] = None,
) -> None:
    from runner.execute import repeat

    prepared = repeat.prepare(Settings.root, run, out and out.absolute(), profile)
    say(f"repeating {name_of(prepared.original)} as {prepared.folder.path}")
    try:
        if prepared.state.phase == "planned":
            repeat.start(prepared, watcher())
        ended = repeat.wait_for(prepared)
    except KeyboardInterrupt:
        with suppress(OSError):  # the terminal may be gone
            does = "waits for this repeat, which goes on" if prepared.state.in_flight else "repeats it anew"
            say(f"next: the same command {does}")
        raise
    comparison = compare(prepared.original, ended)
    table(["", "original", "repeat", ""], comparison.rows)
    say(comparison.verdict)
    raise typer.Exit(0 if comparison.same_outcome else 1)


@dataclass(frozen=True)
class RepeatComparison:
    """Result of comparing a run with its repeat.

    Attributes:
        rows: table rows of item, original value, repeated value, and `same` or the difference.
        verdict: a one-line summary.
    """

    same_outcome: bool
    rows: list[RepeatRow]
    verdict: str


def compare(then: RunState, now: RunState) -> RepeatComparison:
    """Compare two ended runs. Raises Unreadable."""
    same = then.outcome is now.outcome
    results, verdict = tasks.load(then.run.config.task).compared(then, now)
    # Where they ran, and the software of their jobs and of the Python that launched them.
    around = list[RepeatRow]()
    manifests = [state.latest.manifest for state in (then, now) if state.latest and state.latest.manifest]
    if len(manifests) == 2:  # otherwise one of the runs never started
        before, after = manifests
        around.append(RepeatRow.of("device", before.device_name, after.device_name))
        around.append(RepeatRow.of("host", before.host, after.host))
        around += _versions(before.software, after.software, " (job)")
    old, new = (provenance.lock_of(state.folder) for state in (then, now))
    if old is None or new is None:
        then_count, now_count = (UNKNOWN if lock is None else f"{len(lock)}" for lock in (old, new))
        around.append(RepeatRow("packages", then_count, now_count, UNKNOWN))
    else:  # a row for each package that differs, else one row for all
        packages = [*_versions(old, new)]
        around += packages or [RepeatRow("packages", f"{len(old)}", f"{len(new)}", SAME)]
    rows = [RepeatRow.of("outcome", then.outcome, now.outcome), *results, *around]
    summary = (
        f"the outcome is the same, {now.outcome}" if same else f"{now.outcome} instead of {then.outcome}"
    )
    summary += f"; {verdict}"
    for word, mark in (("changed", DIFFERS), ("unknown", UNKNOWN)):
        if subjects := [row.subject for row in around if row.verdict == mark]:
            summary += f"; {word}: {', '.join(subjects)}"
    return RepeatComparison(same, rows, summary)


def _versions(then: dict[str, str], now: dict[str, str], suffix: str = "") -> Iterator[RepeatRow]:
    for name in sorted(then.keys() | now.keys()):
        if then.get(name) != now.get(name):
            subject = f"{name}{suffix}"
            yield RepeatRow(subject, then.get(name, "absent"), now.get(name, "absent"), DIFFERS)
