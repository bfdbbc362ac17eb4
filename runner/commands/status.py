"""Show the status of every run."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from runner.commands._console import live, print_json, say, table
from runner.commands._options import AsJson, Settings, StudyName, study_name
from runner.execute.reconcile import reconciled
from runner.state.ledger import RunState
from runner.state.runs import last_step
from runner.state.tasks import label

REFRESH_SECONDS = 2.0
HEADS = ("run", "study", "factors", "status", "step", "loss", "tokens/s", "reason")


def command(
    study: StudyName = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh until nothing is in flight.")] = False,
    as_json: AsJson = False,
) -> None:
    root, name = Settings.root, study and study_name(study)
    if watch and not as_json:
        _watch(root, name)
        return
    states = reconciled(root, name)
    if as_json:
        print_json(rows(states))
    else:
        show(states)


def rows(states: Sequence[RunState]) -> list[dict[str, Any]]:
    """One mapping per run, as `status --json` prints it."""
    found = []
    for state in states:
        last = last_step(state)
        found.append({
            "study": state.brief.study,
            "run_id": state.brief.run_id,
            "factors": state.brief.factors,
            "phase": state.phase,
            "outcome": state.outcome,
            "expected_outcome": state.brief.expected_outcome,
            "reason": state.reason,
            "attempt": state.attempt,
            "job_id": state.job_id,
            "step": last.step if last else 0,
            "steps": state.brief.steps,
            "loss": last.loss if last else None,
            "tokens_per_second": last.tokens / last.steps / last.step_seconds if last else None,
        })  # fmt: skip
    return found


def show(states: Sequence[RunState]) -> None:
    """Print a table of the runs, and their counts on standard error."""
    table(HEADS, _lines(states))
    say(_counts(states))


def _lines(states: Sequence[RunState]) -> list[list[str]]:
    return [_line(state, row) for state, row in zip(states, rows(states), strict=True)]


def _line(state: RunState, row: dict[str, Any]) -> list[str]:
    mark = " (as expected)" if state.outcome and state.as_expected and state.outcome != "completed" else ""
    rate, loss = row["tokens_per_second"], row["loss"]
    return [
        state.brief.run_id,
        state.brief.study,
        label(state.brief),
        f"{state.outcome or state.phase}{mark}",
        f"{row['step']}/{row['steps']}",
        "" if loss is None else f"{loss:.3f}",
        "" if rate is None else f"{rate:,.0f}",
        state.reason or "",
    ]


def _counts(states: Sequence[RunState]) -> str:
    words = [str(state.outcome or state.phase) for state in states]
    return f"{len(states)} runs: " + (
        ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(words)) or "none"
    )


def _watch(root: Path, study: str | None) -> None:
    """Show the status until nothing is in flight: in place on a terminal, else one table after another."""
    changing = _changing(root, study)
    if sys.stdout.isatty():
        live(HEADS, ((_lines(sorted(states, key=_interest)), _counts(states)) for states in changing))
        return
    for states in changing:
        show(states)


def _changing(root: Path, study: str | None) -> Iterator[list[RunState]]:
    while True:
        states = reconciled(root, study)
        yield states
        if not any(state.in_flight for state in states):
            return
        time.sleep(REFRESH_SECONDS)


def _interest(state: RunState) -> int:
    """Sort key for watching: running first, then unexpected endings, waiting, and done."""
    if state.phase == "ended":
        return 3 if state.done else 1
    return 0 if state.phase == "running" else 2
