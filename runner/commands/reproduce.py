"""Repeat a run with the same code, configuration and seed, and compare the results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from model.disk.files import read_lines
from model.disk.kernels import KernelTime
from model.disk.record import DecodeRecord, Manifest, StepRecord
from runner.commands._console import say, table
from runner.commands._options import ProfileName, RunName, Settings
from runner.commands._progress import watcher
from runner.state.code import provenance
from runner.state.ledger import RunState
from runner.state.runs import name_of

Row = list[str]
_SAME, _DIFFERS, _UNKNOWN = "same", "differs", "unknown"


def command(
    run: RunName,
    profile: ProfileName = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="A different root for the repeat.")] = None,
) -> None:
    from runner.execute import repeat

    prepared = repeat.prepare(Settings.root, run, out and out.absolute(), profile)
    say(f"repeating {name_of(prepared.original)} as {prepared.folder.path}")
    if prepared.state.phase == "planned":
        repeat.start(prepared, watcher())
    found = compare(prepared.original, repeat.wait_for(prepared))
    table(["", "original", "repeat", ""], found.rows)
    say(found.verdict)
    raise typer.Exit(0 if found.same_outcome else 1)


@dataclass(frozen=True)
class Comparison:
    """Result of comparing a run with its repeat.

    Attributes:
        rows: table rows of item, original value, repeated value, and `same` or the difference.
        verdict: a one-line summary.
    """

    same_outcome: bool
    rows: list[Row]
    verdict: str


def compare(then: RunState, now: RunState) -> Comparison:
    """Compare two ended runs. Raises Unreadable."""
    same = then.outcome is now.outcome
    losses, verdict = _results(then, now)
    differing = [*_manifests(then, now), *_packages(then, now)]
    rows = [_row("outcome", then.outcome, now.outcome), *losses, *differing]
    outcome = (
        f"the outcome is the same, {now.outcome}" if same else f"{now.outcome} instead of {then.outcome}"
    )
    changed = [row[0] for row in differing if row[3] == _DIFFERS]
    around = f"; changed: {', '.join(changed)}" if changed else ""
    if unknown := [row[0] for row in differing if row[3] == _UNKNOWN]:
        around += f"; unknown: {', '.join(unknown)}"
    return Comparison(same, rows, f"{outcome}; {verdict}{around}")


def _row(what: str, then: Any, now: Any) -> Row:
    words = [_UNKNOWN if value is None else str(value) for value in (then, now)]
    return [what, *words, _UNKNOWN if _UNKNOWN in words else _SAME if then == now else _DIFFERS]


def _steps(state: RunState) -> dict[int, StepRecord]:
    """Step records of all attempts by step; where attempts overlap, the later one wins."""
    attempts = (attempt for attempt in state.folder.attempts() if attempt.number <= state.attempt)
    files = (attempt.path / "steps.jsonl" for attempt in attempts)
    return {record.step: record for file in files for record in read_lines(file, StepRecord)}


def _losses(then: dict[int, StepRecord], now: dict[int, StepRecord]) -> tuple[list[Row], str]:
    both = sorted(then.keys() & now.keys())
    rows = [_row("step records", len(then), len(now))]
    if not both:
        return rows, "no steps to compare"
    rows.append(_row(f"loss at step {both[-1]}", _shown(then[both[-1]]), _shown(now[both[-1]])))
    unequal = [step for step in both if then[step].loss != now[step].loss]
    if not unequal:
        return rows, f"the losses of {len(both)} steps are bit-identical"
    worst = max(unequal, key=lambda step: _difference(then[step].loss, now[step].loss))
    difference = _difference(then[worst].loss, now[worst].loss)
    what = f"largest loss difference, step {worst}"
    rows.append([what, _shown(then[worst]), _shown(now[worst]), f"{difference:.2g}"])
    return rows, f"{len(unequal)} of {len(both)} losses differ, by at most {difference:.2g}"


def _results(then: RunState, now: RunState) -> tuple[list[Row], str]:
    """What the two came to, by the task that they did."""
    task = then.run.config.task
    if task == "training":
        return _losses(_steps(then), _steps(now))
    return _calls(then, now) if task == "attention" else _tokens(then, now)


def _calls(then: RunState, now: RunState) -> tuple[list[Row], str]:
    """How each backend ended, and how long its calls take against before: times are never the same."""
    before, after = (_timed(state) for state in (then, now))
    both = sorted(before.keys() & after.keys())
    rows = [_row(", ".join(way), before[way].outcome, after[way].outcome) for way in both]
    pairs = [(before[way].median_seconds, after[way].median_seconds) for way in both]
    ratios = [new / old for old, new in pairs if old and new]
    if not ratios:
        return rows, "no times to compare"
    unlike = sum(row[3] == _DIFFERS for row in rows)
    ended = f"{unlike} of {len(rows)} calls end otherwise" if unlike else f"all {len(rows)} calls end alike"
    return rows, f"{ended}; their times are {min(ratios):.2f} to {max(ratios):.2f} of what they were"


def _timed(state: RunState) -> dict[tuple[str, str, str], KernelTime]:
    kernels = state.latest.kernels if state.latest else None
    return {(each.attention, each.direction, each.mode): each for each in (kernels.times if kernels else ())}


def _tokens(then: RunState, now: RunState) -> tuple[list[Row], str]:
    """The decoded tokens, which follow from all logits before them."""
    before, after = ([each.token_ids for each in _decoded(state)] for state in (then, now))
    rows = [_row("decoded positions", len(before), len(after))]
    if not before or not after:
        return rows, "no decoded tokens to compare"
    unequal = [place for place, (a, b) in enumerate(zip(before, after, strict=False)) if a != b]
    both = min(len(before), len(after))
    if not unequal:
        return rows, f"the tokens of {both} decoded positions are the same"
    return (
        rows,
        f"the tokens of {len(unequal)} of {both} decoded positions differ, from the {unequal[0] + 1}. on",
    )


def _decoded(state: RunState) -> list[DecodeRecord]:
    return state.latest.decoded if state.latest else []


def _shown(record: StepRecord) -> str:
    return "not finite" if record.loss is None else str(record.loss)


def _difference(then: float | None, now: float | None) -> float:
    """Absolute difference; infinite if either loss is not finite."""
    return float("inf") if then is None or now is None else abs(then - now)


def _manifests(then: RunState, now: RunState) -> Iterator[Row]:
    before, after = (state.latest.manifest if state.latest else None for state in (then, now))
    if before is None or after is None:  # one of the runs never started
        return
    yield _row("device", before.device_name, after.device_name)
    yield _row("host", before.host, after.host)
    yield from _versions(_software(before), _software(after))


def _software(manifest: Manifest) -> dict[str, str]:
    return {f"{name} (job)": version for name, version in manifest.software.items()}


def _packages(then: RunState, now: RunState) -> Iterator[Row]:
    """Packages of the launching Python: a row for each that differs, else one row for all."""
    before, after = (provenance.lock_of(state.folder) for state in (then, now))
    if before is None or after is None:
        yield [
            "packages",
            *(_UNKNOWN if lock is None else f"{len(lock)}" for lock in (before, after)),
            _UNKNOWN,
        ]
        return
    differing = list(_versions(before, after))
    yield from differing or [["packages", f"{len(before)}", f"{len(after)}", _SAME]]


def _versions(then: dict[str, str], now: dict[str, str]) -> Iterator[Row]:
    for name in sorted(then.keys() | now.keys()):
        if then.get(name) != now.get(name):
            yield [name, then.get(name, "absent"), now.get(name, "absent"), _DIFFERS]
