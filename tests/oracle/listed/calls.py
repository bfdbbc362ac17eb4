"""Kinds of attention alone: times, rates and ratios, shape by shape."""

from __future__ import annotations

import re
from statistics import median as plain_median
from typing import Any

from tests.oracle.kinds import NONE
from tests.oracle.listing import Cell, Spot, cites, column, text
from tests.oracle.truth import (
    Study,
    median,
)


def _shape_rows(study: Study, length: int, mode: str) -> dict[tuple[str, str], list[dict[str, Any]]]:
    rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for run in study.runs:
        for row in run.kernels if run.length == length else ():
            if row["mode"] == mode:
                rows.setdefault((row["attention"], row["direction"]), []).append(row | {"run": run.id})
    return rows


@column(r"Every shape, (?:graph|eager): .*", ".+")
def shape_cells(cell: Cell) -> str:
    if cell.head in ("Shape", "Direction"):
        shapes = {f"{run.config['call']['shape']}, causal" for run in cell.spot.study.runs}
        return cell.row[cell.head] if cell.row["Shape"] in shapes else f"one of {shapes}"
    mode = cell.caption.split()[2].strip(":")
    length, way = int(cell.row["Shape"].split()[1][1:]), cell.row["Direction"]
    rows = _shape_rows(cell.spot.study, length, mode)
    if not rows:
        return "no times"
    (own,) = rows.get((cell.head, way), [{}])
    if "seconds" not in own:
        return {"oom_gpu": "OOM"}.get(str(own.get("outcome")), str(own.get("outcome", NONE)))
    seconds = {
        name: ones[0] for (name, one_way), ones in rows.items() if one_way == way and "seconds" in ones[0]
    }
    flop = 4 * 16 * length**2 * 128 / 2 * {"forward": 1, "backward": 2.5}[way]
    times = f"{1e3 * plain_median(seconds[cell.head]['seconds'])} {flop / plain_median(seconds[cell.head]['seconds']) / 1e12}"
    others = {name: plain_median(row["seconds"]) for name, row in seconds.items() if name != cell.head}
    best = min(others, key=others.__getitem__)
    together = len({row["run"] for row in seconds.values()}) == 1
    if not together:
        return times
    ratios = sorted(
        b / a for a, b in zip(seconds[cell.head]["seconds"], seconds[best]["seconds"], strict=True)
    )
    return f"{times} {median(ratios)} {ratios[0]} {NONE} {ratios[-1]}"


@column(r"Bytes of a call in GB: .*", ".+")
def bytes_of_calls(cell: Cell) -> str:
    if cell.head not in ("Scores", "Formula", "L2 cache", "DRAM"):
        return "B1 T1024 H16 D128, causal" if cell.head == "Shape" else cell.row[cell.head]
    if cell.head == "Scores":
        return f"{16 * 1024**2 * 2 / 1e9}"
    (own,) = [
        row
        for run in cell.spot.study.runs
        for row in run.kernels
        if (row["attention"], row["direction"]) == (cell.row["Backend"], cell.row["Direction"])
        and "traffic" in row
    ]
    if cell.head == "Formula":
        return f"{own['traffic']['formula_bytes'] / 1e9}"
    memory = cell.head.split()[0].lower()
    return f"{sum(own['traffic']['counted'][f'{memory}_{way}_bytes'] for way in ('read', 'write')) / 1e9}"


@column(r"Backends that were not timed.*", "Runs")
def not_timed(cell: Cell) -> str:
    row = cell.row
    shapes = {
        run.length
        for run in cell.spot.study.runs
        for one in run.kernels
        if (one["attention"], one["mode"], one["outcome"]) == (row["Backend"], row["Mode"], row["Outcome"])
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
    return cites(match[0], 2 * len({run.length for run in spot.study.runs}))


@column(r"(?:Called from Python|Replayed from CUDA graphs): .*", ".+")
def call_cells(cell: Cell) -> str:
    assert cell.spot.run
    mode = "eager" if cell.caption.startswith("Called") else "graph"
    heads = list(cell.row)
    way = "forward" if heads.index(cell.head) < 4 else "backward"
    (row,) = [
        row
        for row in cell.spot.run.kernels
        if (row["attention"], row["direction"], row["mode"]) == (cell.first, way, mode)
    ]
    if "seconds" not in row:
        return str(row["outcome"])
    seconds = sorted(row["seconds"])
    flop = 4 * 16 * cell.spot.run.length**2 * 128 / 2 * {"forward": 1, "backward": 2.5}[way]
    if "ms" in cell.head:
        return f"{1e3 * plain_median(seconds)}"
    if "Interval" in cell.head:
        return f"{1e3 * seconds[0]} to {1e3 * seconds[-1]}"
    return f"{flop / plain_median(seconds) / 1e12}"
