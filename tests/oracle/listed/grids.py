"""Kinds of grids: quantities over axes as lines and as maps, and what cells save against their baselines."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from math import log
from statistics import fmean, pstdev

from tests.oracle import kinds
from tests.oracle.kinds import NONE
from tests.oracle.listed.facts import QUANTITIES, how_made, quantity_of, ratio_interval
from tests.oracle.listing import Cell, Spot, column, text
from tests.oracle.reported import described, hollow
from tests.oracle.truth import Study, Value

SWEPT: dict[str, Callable[[Study, str], Value | None]] = {
    "Tokens per second": QUANTITIES["tokens per second"],
    "MFU, percent": kinds.mfu_of,
    "Seconds per step": QUANTITIES["seconds per step"],
    "Peak memory, GiB": kinds.peak_of,
    "Final loss, nats per token": kinds.final_loss,
    "Time saved, percent": kinds.time_saved,
    "Memory saved, percent": kinds.memory_saved,
}


def saving(study: Study) -> list[str]:
    """The groups that are compared with a baseline."""
    return [label for label in study.measured if study.against(label) in study.measured]


class Place(dict[str, str]):
    """Where a group is: its value on each axis by title, and in `rest` what else varies."""

    rest = ""


def places(spot: Spot) -> dict[str, Place]:
    """By label, of all groups of a figure."""
    study, placement = spot.study, {}
    labels = saving(study) if spot.page == "savings" else list(study.groups)
    factors = {label: study.groups[label][0].plan["factors"] for label in labels}
    axes = kinds.axes(study, labels)
    other_factors = [
        name
        for name in sorted(factors[labels[0]])
        if name not in (*axes, "seed", "repeat")
        and len({settings[name] for settings in factors.values()}) > 1
    ]
    for label, values in factors.items():
        placement[label] = Place({title(name): f"{values[name]}" for name in axes})
        placement[label].rest = ", ".join(
            f"{values[name]}" if name == "attention" else f"{title(name)} {values[name]}"
            for name in other_factors
        )
    return placement


def title(factor: str) -> str:
    """`batch size` of `train.batch_size`."""
    return factor.rpartition(".")[2].replace("_", " ")


@column(r".* (?:over|by) (?:batch size|dim).*: values", ".+")
def sweep_cells(cell: Cell) -> str:
    study = cell.spot.study
    for label, place in places(cell.spot).items():  # noqa: B007 - the one that was met
        coordinates = {name.capitalize(): value.replace(",", "") for name, value in place.items()}
        if place.rest == cell.row["Group"] and all(
            cell.row[head].replace(",", "") == coordinates[head] for head in coordinates
        ):
            break
    else:
        return "of no group"
    if cell.head in ("Group", *coordinates):
        return cell.row[cell.head]
    head, runs = list(cell.row)[1 + len(coordinates)], study.completed(label)
    value = SWEPT[head](study, label) if runs else None
    prefix = "range " if value and value.is_range else ""
    return {
        head: NONE if value is None else f"{value.middle}",
        "Interval": f"{prefix}{value.ends[0]} {NONE} {value.ends[1]}" if value and value.ends else NONE,
        "n": f"{len(kinds.pairs_of(study, label) if cell.spot.page == 'savings' else runs)}",
        "Not completed": NONE if runs else "OOM",
    }[cell.head]


@text(r"(?P<plot>Line plot over|Heat map by) [^:]+: (?P<what>.+) from .* to .*", "figcaption")
def sweep_description(spot: Spot, match: re.Match[str]) -> Iterator[str]:
    if spot.page not in ("sweeps", "savings"):
        return
    placement = places(spot)
    (quantity,) = (
        name for name in SWEPT if match["what"] == name[0].lower() + name[1:] or match["what"] == name
    )
    values = {
        label: value
        for label in placement
        if spot.study.completed(label) and (value := SWEPT[quantity](spot.study, label))
    }
    axes = list(next(iter(placement.values())))
    start = (
        f"Line plot over {axes[0]}"
        if match["plot"].startswith("Line")
        else f"Heat map by {' and '.join(axes[:2])}"
    )

    def ends(end: Callable[..., float]) -> list[str]:
        extreme = end(value.middle for value in values.values())
        return [
            f"{extreme} ({', '.join([placement[label].rest, *(f'{name} {place}' for name, place in placement[label].items())])})"
            for label, value in values.items()
            if abs(value.middle / extreme - 1) < 1e-9
        ]

    empty_cells = len(placement) - len(values)
    remark = f" {empty_cells} cell{' has' if empty_cells == 1 else 's have'} no value." if empty_cells else ""
    for low in ends(min):
        yield from (f"{start}: {match['what']} from {low} to {high}.{remark}" for high in ends(max))


@text(r"\(6 N \+ 12 L H Q T\) FLOP a token over the device's dense peak; .*", "figcaption")
def sweep_mfu_caption(spot: Spot, match: re.Match[str]) -> str:
    study = spot.study
    values = [value for label in study.measured if (value := kinds.mfu_of(study, label))]
    estimates = [estimate for value in values if (estimate := kinds.told(value)).ends]
    ranges = " or ranges of a run's records" if any(value.is_range for value in estimates) else ""
    condition = " where there is one" if len(estimates) < len(values) else ""
    outcomes = {run.outcome for run in study.runs if not run.done}
    caption = (
        "(6 N + 12 L H Q T) FLOP a token over the device's dense peak; no causal discount, no recomputation."
    )
    if spot.figure.endswith("_map"):
        scale = (
            ", on one scale for all heat maps"
            if len({place.rest for place in places(spot).values()}) > 1
            else ""
        )
        caption += f" Numbers: the median of a cell's runs; darker is more{scale}."
        caption += " A cell with a dashed edge has no value, and says how its runs ended." if outcomes else ""
    else:
        caption += f" Marks: the median of a cell's runs.{f' Bars: intervals{ranges}{condition}.' if estimates else ''} Side by side: one value."
        caption += (
            f" Logarithmic: {axis}."
            if is_logarithmic(study, axis := next(iter(places(spot)[study.measured[0]])))
            else ""
        )
        caption += " Crosses below the axis: runs that did not complete there." if has_gaps(spot) else ""
    return caption + (" OOM: out of memory." if "oom_gpu" in outcomes else "")


def lines_of(spot: Spot) -> dict[str, list[str]]:
    """The labels of each line of a figure over the first axis."""
    lines: dict[str, list[str]] = {}
    for label, place in places(spot).items():
        _, *others = place.items()
        rest = [place.rest, *(f"{name} {int(value):,d}" for name, value in others)]
        lines.setdefault(", ".join(rest), []).append(label)
    return lines


def has_gaps(spot: Spot) -> bool:
    """Whether a line has values at some of its places and none at others."""
    return any(
        0 < sum(bool(spot.study.completed(label)) for label in labels) < len(labels)
        for labels in lines_of(spot).values()
    )


def is_logarithmic(study: Study, axis: str) -> bool:
    """Whether the gaps between the logarithms of an axis's values are more even than those between the values."""
    (name,) = (factor for factor in study.runs[0].plan["factors"] if title(factor) == axis)
    values = sorted({run.plan["factors"][name] for run in study.runs})

    def uneven(points: list[float]) -> float:
        gaps = [after - before for before, after in pairwise(points)]
        return pstdev(gaps) / fmean(gaps)

    return uneven([log(value) for value in values]) < uneven(values)


@text(r"No value at all: .*", "p.warning")
def no_value(spot: Spot, match: re.Match[str]) -> str:
    empty_lines = [
        line for line, labels in lines_of(spot).items() if not any(map(spot.study.completed, labels))
    ]
    return f"No value at all: {'; '.join(empty_lines)} (OOM)."


@text(r"100 x \(1 - seconds per token / .*|100 x \(1 - peak memory / .*", "figcaption")
def saved_caption(spot: Spot, match: re.Match[str]) -> str:
    start = (
        "100 x (1 - seconds per token / those of the baseline): the share of its time that is saved."
        if "time" in spot.figure
        else "100 x (1 - peak memory / the baseline's): the median over pairs of runs."
    )
    if spot.figure.endswith("_lines"):
        return match[0] if match[0].startswith(start) else start
    return f"{start} Below zero, the group takes more. Runs are paired by seed and repeat where shared.{hollow(spot)}"


@text(r"Dot plot of the percent of (?P<what>time|memory) saved, by group: .*", "figcaption")
def saved_description(spot: Spot, match: re.Match[str]) -> str:
    study, quantity = spot.study, kinds.SAVED[match["what"]]
    values = {label: value.middle for label in saving(study) if (value := quantity(study, label))}
    ends = [
        f"{values[label]} % ({label})"
        for label in (end(values, key=lambda candidate: values[candidate]) for end in (min, max))
    ]
    return (
        f"Dot plot of the percent of {match['what']} saved, by group: {' to '.join(ends)}.{described(spot)}"
    )


@column(r"Percentage (?:speedup|of memory saved): values", "(?:time|memory) saved, %", "95 % interval")
def saved_cells(cell: Cell) -> str:
    value = kinds.SAVED["time" if "speedup" in cell.caption else "memory"](cell.spot.study, cell.first)
    assert value
    if cell.head != "95 % interval":
        return f"{value.middle}"
    return f"{'range ' if value.is_range else ''}{value.ends[0]} to {value.ends[1]}" if value.ends else NONE


@text(r"Interval: (?:in the table: )?n = \d+: .* \(\d+ cells\).*", "dl.facts")
def intervals_of_cells(spot: Spot, match: re.Match[str]) -> str:
    study, counts = spot.study, dict[str, int]()
    for label in saving(study) if spot.page == "savings" else study.measured:
        if spot.page == "savings":
            n = len(kinds.pairs_of(study, label))
            method = f"{ratio_interval(study, label, study.against(label) or '')}, of which 1 - 1 / ratio"
            method = method if "time" in spot.figure else "none"
        else:
            name = quantity_of(spot._replace(figure=spot.figure.removesuffix("_map")))
            value, n = QUANTITIES[name](study, label), len(study.completed(label))
            method = how_made(study, label, value) if value else ""
            if name == "final loss":
                several = f"95 % t interval of the mean over {n} seeds, which assumes that they are normal"
                method = "no interval: one seed" if n == 1 else several
        counts[f"n = {n}: {method}"] = counts.get(f"n = {n}: {method}", 0) + 1
    table = "in the table: " if "in the table" in match[0] else ""
    return f"Interval: {table}" + "; ".join(f"{text} ({count} cells)" for text, count in counts.items())
