"""Kinds of attention alone: times, rates and ratios, shape by shape."""

from __future__ import annotations

import re
from statistics import median as plain_median

from tests.oracle import calls
from tests.oracle.calls import Case
from tests.oracle.kinds import NONE
from tests.oracle.listing import Cell, Spot, cites, column, text
from tests.oracle.truth import Study


def case_at(study: Study, shape: str) -> Case:
    """The case of a row."""
    return next(case for case in calls.cases(study) if calls.written(study, case) == shape)


@column(r"Every shape, (?:graph|eager): .*", ".+")
def shape_cells(cell: Cell) -> str:
    study, direction = cell.spot.study, cell.row["Direction"]
    if cell.head in ("Shape", "Direction"):
        shapes = {calls.written(study, calls.case_of(run)) for run in study.runs}
        return cell.row[cell.head] if cell.row["Shape"] in shapes else f"one of {shapes}"
    if cell.row["Shape"] not in {calls.written(study, case) for case in calls.cases(study)}:
        return "no times"
    mode, case = cell.caption.split()[2].strip(":"), case_at(study, cell.row["Shape"])
    value = calls.time(study, case, cell.head, direction, mode)
    if not value:
        ends = {
            row["outcome"]
            for row in calls.rows(study, case, cell.head, mode)
            if row["direction"] == direction
        }
        return {"oom_gpu": "OOM"}.get(*2 * (next(iter(ends), NONE),))
    (row,) = (row for row in calls.rows(study, case, cell.head, mode) if row["direction"] == direction)
    host = (
        f" host {1e3 * plain_median(row['host_seconds'])}"
        if mode == "eager" and "host_seconds" in row
        else ""
    )
    texts = f"{value.middle} {case.flop(direction) / value.middle / 1e9}{host}"
    ahead = calls.lead(study, case, cell.head, direction, mode)
    if not ahead or not ahead.ratio.ends:
        return texts
    return f"{texts} {ahead.ratio.middle} {ahead.ratio.ends[0]} {NONE} {ahead.ratio.ends[1]}"


@column(r"Bytes of a call in GB: .*", ".+")
def bytes_of_calls(cell: Cell) -> str:
    study, case = cell.spot.study, case_at(cell.spot.study, cell.row["Shape"])
    if cell.head not in ("Scores", "Formula", "L2 cache", "DRAM"):
        return cell.row[cell.head]
    if cell.head == "Scores":
        return f"{case.batch * case.heads * case.length**2 * 2 / 1e9}"
    (call_row,) = (
        row
        for row in calls.rows(study, case, cell.row["Backend"], "eager")
        if row["direction"] == cell.row["Direction"]
    )
    if cell.head == "Formula":
        return f"{call_row['traffic']['formula_bytes'] / 1e9}"
    memory = cell.head.split()[0].lower()
    return f"{sum(call_row['traffic']['counted'][f'{memory}_{access}_bytes'] for access in ('read', 'write')) / 1e9}"


@column(r"Backends that were not timed.*", "Runs")
def not_timed(cell: Cell) -> str:
    row = cell.row
    shapes = {
        calls.case_of(run)
        for run in cell.spot.study.runs
        for call_row in run.kernels
        if (call_row["attention"], call_row["outcome"]) == (row["Backend"], row["Outcome"])
        and call_row["mode"] in row["Mode"].split(", ")
    }
    return f"{len(shapes)}"


@text(r"Every shape, (?:graph|eager): milliseconds .* and the 95 % interval of that; .*", "caption")
@text(
    r"(?:Called from Python|Replayed from CUDA graphs): the median time of a call, with its 95 % interval .*",
    "caption",
)
def calls_caption(spot: Spot, match: re.Match[str]) -> str:
    return cites(match[0], 95)


@text(r"Called from Python, eagerly: \d+ rows", "summary")
def eager_rows(spot: Spot, match: re.Match[str]) -> str:
    directions = [
        1 if case.dtype == calls.FP8 else 2 for case in {calls.case_of(run) for run in spot.study.runs}
    ]
    return cites(match[0], sum(directions))


@column(r"(?:Called from Python|Replayed from CUDA graphs): .*", ".+")
def call_cells(cell: Cell) -> str:
    assert cell.spot.run
    mode = "eager" if cell.caption.startswith("Called") else "graph"
    heads = list(cell.row)
    direction = (
        "forward"
        if heads.index(cell.head) < 1 + len(heads[1:]) // 2 or calls.case_of(cell.spot.run).dtype == calls.FP8
        else "backward"
    )
    (row,) = [
        row
        for row in cell.spot.run.kernels
        if (row["attention"], row["direction"], row["mode"]) == (cell.first, direction, mode)
    ]
    if "seconds" not in row:
        return str(row["outcome"])
    if cell.head.startswith("Host"):
        return f"{1e3 * plain_median(row['host_seconds'])}"
    if cell.head.startswith("Kernels"):
        return f"{1e3 * row['kernel_seconds']}"
    seconds = sorted(row["seconds"])
    flop = calls.case_of(cell.spot.run).flop(direction)
    if "ms" in cell.head:
        return f"{1e3 * plain_median(seconds)}"
    if "Interval" in cell.head:
        return f"{1e3 * seconds[0]} to {1e3 * seconds[-1]}"
    return f"{flop / plain_median(seconds) / 1e12}"
