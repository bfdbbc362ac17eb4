"""`runner status` and `runner logs`: where runs stand, for a person and as JSON."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from runner import status
from runner.console import live, say, table
from runner.ledger import RunState
from runner.tasks import label

REFRESH_SECONDS = 2.0


def rows(states: Sequence[RunState]) -> list[dict[str, Any]]:
    """One mapping a run, as `status --json` prints it."""
    found = []
    for state in states:
        last = status.last_step(state)
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


HEADS = ("run", "study", "factors", "stands", "step", "loss", "tokens/s", "reason")


def show(states: Sequence[RunState]) -> None:
    """A table of all runs, and a line that counts them."""
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


def watch(root: Path, study: str | None) -> None:
    """Show where runs stand until nothing is in flight: on a terminal in place, else table after table."""
    changing = _changing(root, study)
    if sys.stdout.isatty():
        live(HEADS, ((_lines(sorted(states, key=_interest)), _counts(states)) for states in changing))
        return
    for states in changing:
        show(states)


def _changing(root: Path, study: str | None) -> Iterator[list[RunState]]:
    while True:
        states = status.reconciled(root, study)
        yield states
        if not any(state.in_flight for state in states):
            return
        time.sleep(REFRESH_SECONDS)


def _interest(state: RunState) -> int:
    """What a watcher looks for first: what runs, what went wrong, what waits, what is done."""
    if state.phase == "ended":
        return 3 if state.done else 1
    return 0 if state.phase == "running" else 2


def logs(root: Path, run_id: str, follow: bool) -> None:
    """Print stdout.log and stderr.log of a run's newest attempt; with `follow`, until it ends."""
    read: dict[Path, int] = {}
    while True:
        state = status.find(root, run_id)
        over = state.phase == "ended"
        for name in ("stdout.log", "stderr.log"):
            _print_new(state.folder.attempt(state.attempt) / name, read)
        if over or not follow:
            break
        time.sleep(REFRESH_SECONDS / 4)
    reason = f": {state.reason}" if state.reason else ""
    say(f"{run_id} attempt {state.attempt}: {state.outcome or state.phase}{reason}")


def _print_new(path: Path, read: dict[Path, int]) -> None:
    if path.exists():
        with path.open("rb") as file:
            file.seek(read.get(path, 0))
            content = file.read()
        read[path] = read.get(path, 0) + len(content)
        sys.stdout.write(content.decode("utf-8", "replace"))
        sys.stdout.flush()
