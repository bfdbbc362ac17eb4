"""Kinds of sentences of the overview, and of the tables of runs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from datetime import datetime
from statistics import median as plain_median

import numpy as np

from tests.oracle import kinds
from tests.oracle.kinds import NONE, took
from tests.oracle.listed.facts import order_of, outcome_of, start_of
from tests.oracle.listing import Cell, Spot, cites, column, text
from tests.oracle.truth import (
    Run,
    Study,
)


@text(r".+", "section.answer")
@text(r".+", "ul.answer")
@text(r".+", "ul.warning")
@text(r".+", "section>p")
def sentence(spot: Spot, match: re.Match[str]) -> Iterator[str]:
    study = spot.study
    sentences = {
        place: [statement for kind in place_kinds.values() for statement in kind(study)]
        for place, place_kinds in kinds.SENTENCES.items()
    }
    yield " ".join(sentences["answer"])
    for statements in sentences.values():
        yield from statements
    if spot.page == "methods":
        yield f"{sentences['ran'][0]} The order of the runs: {order_of(study)}. Tables and figures list groups in the study's order, whatever their values."
    if unreadable := sum(not attempt.manifest for run in study.runs for attempt in run.attempts):
        yield f"{unreadable} file could not be read; nothing from there is in this report:"


@text(r"(?P<file>\S+/manifest\.json): Invalid JSON: .* at line 1 column \d+")
def torn_file(spot: Spot, match: re.Match[str]) -> str:
    try:
        json.loads((spot.root / match["file"]).read_text())
    except json.JSONDecodeError as error:
        return cites(match[0], 1, error.lineno, error.colno)  # of attempt 1
    return "the file can be read"


@text(r"\d+ more", "summary")
def folded(spot: Spot, match: re.Match[str]) -> str:
    limits = sum(len(list(kind(spot.study))) for kind in kinds.SENTENCES["limit"].values())
    return f"{limits - 2} more"


@text(r".+", "p.byline")
def byline(spot: Spot, match: re.Match[str]) -> Iterator[str]:
    runs = spot.study.runs
    count = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
    if run := spot.run:
        name = (spot.study.imported and match[0].split()[1]) or run.id
        others = [start_of(other) for other in spot.study.groups[run.label] if other is not run]
        yield f"Run {name} of {count}" + (f"; other runs of its group: {', '.join(others)}" if others else "")
    groups = f"{len(spot.study.groups)} group{'s' if len(spot.study.groups) > 1 else ''}"
    scale = "" if spot.study.imported else " · scale full · profile local"
    yield f"Study {spot.study.name} · {count} in {groups}{scale}"


@text(r"All \d+ runs?, in the study's order.*|The only run, in the study's order.*", "caption")
def runs_caption(spot: Spot, match: re.Match[str]) -> str:
    count = len(spot.study.runs)
    if match[0].startswith("The only"):
        return match[0] if count == 1 else f"All {count} runs"
    return cites(match[0], count)


RUNS = r"(?:All \d+ runs?|The only run), in the study's order.*"


@column(RUNS, ".+")
def cell_of_run(cell: Cell) -> str:
    study, row = cell.spot.study, cell.row
    run = next(
        run
        for run in study.runs
        if run.id == row["Run"] or (study.imported and run.label == row["Group"].partition(" (")[0])
    )
    rates = [record["tokens"] / record["steps"] / record["step_seconds"] for record in run.counted]
    mfu = run.mfu(run.seconds) if run.counted else None
    seed, repeat = run.key
    if "call" in run.config:
        peak = None
    elif run.attempts and run.outcome:
        peak = run.peak_gib or None
    else:
        peak = None
    values: dict[str, Callable[[], object]] = {
        "Run": lambda: run.id if not study.imported else row["Run"],
        "Group": lambda: run.label + (" (imported)" if study.imported else ""),
        "Seed": lambda: seed,
        "Repeat": lambda: repeat,
        "Started": lambda: start_time(run) if cell.spot.page == "runs" else run.plan.get("position"),
        "Outcome": lambda: outcome_of(run),
        "Steps": lambda: last_step(run),
        "Rounds": lambda: run.config["call"]["steps"],
        "Probes": lambda: last_step(run),
        "Attempts": lambda: len(run.attempts),
        "Tokens/s": lambda: run.tokens / run.seconds if run.counted else None,
        "Quartiles": lambda: (
            f"{np.quantile(rates, 0.25)} {NONE} {np.quantile(rates, 0.75)}" if rates else None
        ),
        "MFU, %": lambda: mfu,
        "Peak memory, GiB": lambda: peak,
        "Final loss": lambda: run.final_loss,
        "Decoded token, ms": lambda: 1e3 * plain_median(run.decoded) if run.decoded else None,
        "Certificate": lambda: certificate_of(study, run),
        "Wall time": lambda: took(run.wall),
        "Node": lambda: run.measured.manifest["host"],
    }
    value = values[cell.head]()
    return NONE if value is None else f"{value}"


def start_time(run: Run) -> str | None:
    """Of its first attempt."""
    began = run.attempts[0].result.get("started_at") if run.attempts else None
    return moment(began) if began else None


def certificate_of(study: Study, run: Run) -> str:
    """The verdict of a run's certificate."""
    return str(study.certificate(run).get("verdict", "none")) if run.attempts else "none"


def last_step(run: Run) -> int | None:
    """How far it came."""
    if not run.attempts:
        return None
    return int(run.attempts[-1].result.get("steps") or (run.steps[-1][1]["step"] if run.steps else 0))


def moment(time: str) -> str:
    """As pages write it."""
    return datetime.fromisoformat(time).strftime("%Y-%m-%d %H:%M:%S UTC")
