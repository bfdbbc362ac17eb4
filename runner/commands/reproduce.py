"""Repeat a run with the same code, configuration and seed, and compare the results."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from model.record.records import Manifest
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
    differing = [*_manifests(then, now), *_packages(then, now)]
    rows = [RepeatRow.of("outcome", then.outcome, now.outcome), *results, *differing]
    outcome = (
        f"the outcome is the same, {now.outcome}" if same else f"{now.outcome} instead of {then.outcome}"
    )
    changed = [row.subject for row in differing if row.verdict == DIFFERS]
    around = f"; changed: {', '.join(changed)}" if changed else ""
    if unknown := [row.subject for row in differing if row.verdict == UNKNOWN]:
        around += f"; unknown: {', '.join(unknown)}"
    return RepeatComparison(same, rows, f"{outcome}; {verdict}{around}")


def _manifests(then: RunState, now: RunState) -> Iterator[RepeatRow]:
    before, after = (state.latest.manifest if state.latest else None for state in (then, now))
    if before is None or after is None:  # one of the runs never started
        return
    yield RepeatRow.of("device", before.device_name, after.device_name)
    yield RepeatRow.of("host", before.host, after.host)
    yield from _versions(_software(before), _software(after))


def _software(manifest: Manifest) -> dict[str, str]:
    return {f"{name} (job)": version for name, version in manifest.software.items()}


def _packages(then: RunState, now: RunState) -> Iterator[RepeatRow]:
    """Packages of the launching Python: a row for each that differs, else one row for all."""
    before, after = (provenance.lock_of(state.folder) for state in (then, now))
    if before is None or after is None:
        old, new = (UNKNOWN if lock is None else f"{len(lock)}" for lock in (before, after))
        yield RepeatRow("packages", old, new, UNKNOWN)
        return
    differing = list(_versions(before, after))
    yield from differing or [RepeatRow("packages", f"{len(before)}", f"{len(after)}", SAME)]


def _versions(then: dict[str, str], now: dict[str, str]) -> Iterator[RepeatRow]:
    for name in sorted(then.keys() | now.keys()):
        if then.get(name) != now.get(name):
            yield RepeatRow(name, then.get(name, "absent"), now.get(name, "absent"), DIFFERS)
