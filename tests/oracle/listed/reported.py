"""Kinds of the table of others' numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from tests.oracle import calls, kinds
from tests.oracle.kinds import NONE
from tests.oracle.listed.facts import QUANTITIES
from tests.oracle.listing import Cell, Spot, cites, column, text
from tests.oracle.reported import OTHER_WORK, SHORTER, UNITS, Quoted, flags, quoted
from tests.oracle.truth import Run, Study, Value, arithmetic_median, median

QUOTED = r"Numbers that the study quotes, .*"


def _value(quantity: Callable[[Study, str], Value | None]) -> Callable[[Study, Quoted], float | None]:
    return lambda study, number: value.middle if (value := quantity(study, number.label)) else None


def _over(quantity: Callable[[Run], float]) -> Callable[[Study, Quoted], float | None]:
    return lambda study, number: median(map(quantity, study.completed(number.label)))


def _training_share(run: Run) -> float:
    records = [record for _, record in run.steps]
    return (
        100.0
        * sum(int(entry["training_tokens"]) for entry in records)
        / sum(int(entry["tokens"]) for entry in records)
    )


def _call(direction: str) -> Callable[[Study, Quoted], float | None]:
    return lambda study, number: (
        1e3
        * arithmetic_median(calls.seconds(study, calls.case_of(number.run), str(number.backend), direction))
    )


def _call_rate(direction: str) -> Callable[[Study, Quoted], float | None]:
    def rate(study: Study, number: Quoted) -> float | None:
        milliseconds = _call(direction)(study, number)
        return calls.case_of(number.run).flop(direction) / milliseconds / 1e9 if milliseconds else None

    return rate


def _call_memory(study: Study, number: Quoted) -> float | None:
    rows = [row for row in number.run.kernels if (row["attention"], row["mode"]) == (number.backend, "eager")]
    return float(max(row["memory_bytes"] for row in rows)) / 1e6


def _memory(study: Study, number: Quoted) -> float | None:
    peak = kinds.peak_of(study, number.label)
    return peak.middle * 2**30 / 1e9 if peak else None


OURS: dict[str, tuple[str, Callable[[Study, Quoted], float | None]]] = {
    "tokens_per_second": ("Tokens/s", _value(QUANTITIES["tokens per second"])),
    "mfu": ("MFU, %", _value(kinds.mfu_of)),
    "tflops": ("TFLOP/s", _over(lambda run: run.flop * run.tokens / run.seconds / run.gpus / 1e12)),
    "training_tokens_percentage": ("Tokens that train, %", _over(_training_share)),
    "final_loss": ("Final loss", _value(kinds.final_loss)),
    "training_seconds": ("Training time, s", _over(lambda run: run.training)),
    "peak_memory_bytes": ("Memory, GB", _memory),
    "time_saved_percentage": ("Time saved, %", _value(kinds.time_saved)),
    "memory_saved_percentage": ("Memory saved, %", _value(kinds.memory_saved)),
    "call_memory_bytes": ("Memory of a call, MB", _call_memory),
    **{
        f"{way}_milliseconds": (f"{way.capitalize()}, ms", _call(way))
        for way in ("forward", "backward", "both")
    },
    "forward_tflops": ("Forward, kernel TFLOP/s", _call_rate("forward")),
}


@text(QUOTED, "caption")
def quoted_caption(spot: Spot, match: re.Match[str]) -> str:
    return cites(match[0])


@column(QUOTED, ".+")
def quoted_cells(cell: Cell) -> str:
    study = cell.spot.study
    for number in quoted(study):
        title, ours_of = OURS[number.name]
        group = f"{number.backend}, {number.label}" if number.backend else number.label
        if (group, title) == (cell.first, cell.row["Quantity"]):
            break
    else:
        return "of no group"
    ours, gpus, origin = ours_of(study, number), number.entry.get("gpus", 1), number.entry["read_from"]
    theirs = (
        number.value * UNITS.get(number.name, 1) / {"GB": 1e9, "MB": 1e6}.get(title.rpartition(", ")[2], 1)
    )
    ratio = NONE
    if ours is not None and number.has_ratio:
        is_share = number.name == "mfu" or number.name.endswith("_percentage")
        in_points = is_share and "point" in cell.row[cell.head]
        ratio = f"{ours - number.value:+} points" if in_points else f"{ours / theirs}"
        ratio = f"{ours - number.value:+}" if number.name == "final_loss" else ratio
    texts = {
        "Theirs": f"{theirs}",
        "Ours": NONE if ours is None else f"{ours}",
        "Their hardware": f"{gpus} x {number.entry['hardware']}"
        if gpus > 1
        else f"{number.entry['hardware']}",
        "Source": f"{number.entry['source']} read from {'the' if origin == 'text' else 'a'} {origin}",
    }
    return texts.get(cell.head, ratio if cell.head.startswith("Ours ") else cell.row[cell.head])


@text(r"(?:Flagged|Note of the study): .*", "div.kept")
def flag_of_numbers(spot: Spot, match: re.Match[str]) -> Iterator[str]:
    yield from flags(spot.study)


@text(r"Without a ratio for .*", "p.note")
def without_ratio(spot: Spot, match: re.Match[str]) -> Iterator[str]:
    reasons: dict[str, list[str]] = {}
    for number in quoted(spot.study):
        changed = number.run.plan.get("overridden", {})
        if OTHER_WORK in changed:
            reason = f"the runs here are other work than the numbers are about, by {OTHER_WORK}"
        elif not number.has_ratio:
            quantities = {
                other.name for other in quoted(spot.study) if other.run is number.run and not other.has_ratio
            }
            names = [
                title.partition(",")[0].lower() for name, (title, _) in OURS.items() if name in quantities
            ]
            reason = f"{', '.join(names)}: the runs here differ from the study by {SHORTER}"
        else:
            continue
        reasons.setdefault(reason, []).append(number.label)
    for reason, labels in reasons.items():
        yield f"Without a ratio for {kinds.listed(list(dict.fromkeys(labels)))}: {reason}."
