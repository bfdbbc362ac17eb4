"""Kinds of the figures of attention alone: along an axis, as a map, and of 8 bits."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.oracle import calls, series
from tests.oracle.calls import Case
from tests.oracle.kinds import NONE, listed
from tests.oracle.listing import Cell, Spot, column, text
from tests.oracle.pages import NUMBER
from tests.oracle.reported import described, hollow
from tests.oracle.series import FIGURES, Figure, errors, gain
from tests.oracle.truth import Study, Value


def title(figure: Figure) -> str:
    """Its quantity with the unit."""
    return f"{figure.name}, {figure.unit}" if figure.unit else figure.name


def of_line(spot: Spot, fixed: str) -> dict[tuple[str, Case], Value | None]:
    """The values of a series, by backend and case."""
    figure, cases = FIGURES[spot.figure], series.series(spot.study, spot.figure)[fixed]
    return {
        (name, case): figure.value(spot.study, case, name)
        for name in calls.backends(spot.study)
        for case in cases
        if calls.rows(spot.study, case, name)
    }


@text(
    r"(?P<before>.*)(?P<called>Replayed from CUDA graphs|Counted in calls from Python|The same along the axis): (?P<fixed>(?:batch|sequence length) .*?)\.(?P<more> The table has \d+ more series\.)?",
    "figcaption",
)
def series_caption(spot: Spot, match: re.Match[str]) -> str:
    if spot.figure not in FIGURES:
        return "a caption of another figure"
    several = series.series(spot.study, spot.figure)
    fixed = [
        candidate for candidate in several if candidate == match["fixed"].replace(",", "").replace("  ", " ")
    ] or [candidate for candidate in several if candidate.replace(",", "") == match["fixed"].replace(",", "")]
    if not fixed:
        return f"one of {list(several)}"
    remark = f" The table has {len(several) - 1} more series." if len(several) > 1 else ""
    before = match["before"]
    if spot.figure == "kernel_tile":
        before = _gone_in_tiles(before, of_line(spot, fixed[0]))
    if hollow(spot).strip() and hollow(spot).strip() not in before:
        return "hollow marks"
    by_flop = {"kernel_forward": "Of a forward, 4 B", "kernel_backward": "Of a backward, 2.5 times 4 B"}.get(
        spot.figure, ""
    )
    if not before.startswith(by_flop):
        return by_flop
    return f"{before}{match['called']}: {fixed[0]}.{remark}"


def _gone_in_tiles(before: str, values: dict[tuple[str, Case], Value | None]) -> str:
    """What a caption says before the shape, with the tiles in which backends have no time."""
    lacking: dict[str, list[str]] = {}
    for name, case in sorted(values, key=lambda key: key[1].tile or (0, 0)):
        if not values[name, case]:
            lacking.setdefault(name, []).append(series.in_words(case))
    texts = [f"{name} in {listed(tiles)} (unsupported)" for name, tiles in lacking.items()]
    return before.partition("Without a time")[0] + (f"Without a time: {'; '.join(texts)}. " if texts else "")


@text(r"Line plot over (?P<axis>[^:]+): (?P<what>.+?) from .* to .*", "figcaption")
def series_description(spot: Spot, match: re.Match[str]) -> Iterator[str]:
    for fixed in series.series(spot.study, spot.figure) if spot.figure in FIGURES else ():
        figure, estimates = FIGURES[spot.figure], of_line(spot, fixed)
        values = {key: value.middle for key, value in estimates.items() if value}
        empty_cells = len(estimates) - len(values)
        remark = (
            f" {empty_cells} cell{' has' if empty_cells == 1 else 's have'} no value." if empty_cells else ""
        )
        if not values:
            continue
        ends = [
            [
                f"{value} ({name}, {figure.axis.title} {figure.axis.at(case)})"
                for (name, case), value in values.items()
                if abs(value - end(values.values())) <= 1e-3 * abs(value)
            ]
            for end in (min, max)
        ]
        for low in ends[0]:
            yield from (
                f"Line plot over {figure.axis.title}: {title(figure)} from {low} to {high}.{remark}{described(spot)}"
                for high in ends[1]
            )


@text(r"Dot plot by tile and backend: time, ms from .* to .*", "figcaption")
def tiles_description(spot: Spot, match: re.Match[str]) -> Iterator[str]:
    for fixed in series.series(spot.study, "kernel_tile"):
        estimates = of_line(spot, fixed)
        values = {key: value.middle for key, value in estimates.items() if value}
        empty_cells = len(estimates) - len(values)
        remark = (
            f" {empty_cells} cell{' has' if empty_cells == 1 else 's have'} no value." if empty_cells else ""
        )
        ends = [
            f"{values[end]} ({series.in_words(end[1])}, {end[0]})"
            for end in (min(values, key=lambda key: values[key]), max(values, key=lambda key: values[key]))
        ]
        yield f"Dot plot by tile and backend: time, ms from {ends[0]} to {ends[1]}.{remark}"


@column("Time by tile: values", ".+")
def cells_of_tiles(cell: Cell) -> str:
    spot = cell.spot._replace(figure="kernel_tile")
    for fixed in series.series(spot.study, spot.figure):
        for (name, case), value in of_line(spot, fixed).items():
            if cell.first.replace(",", "") == f"{series.in_words(case)} {name}; {fixed.replace(',', '')}":
                ends = {row["outcome"] for row in calls.rows(spot.study, case, name)} - {"completed"}
                return {
                    "Group": cell.first,
                    "Time, ms": f"{value.middle}" if value else NONE,
                    "Interval": f"{value.ends[0]} {NONE} {value.ends[1]}" if value and value.ends else NONE,
                    "n": f"{int(bool(value))}",
                    "Not completed": ", ".join(ends) or NONE,
                }[cell.head]
    return "of no tile"


def figure_of(cell: Cell) -> str:
    """The name of the figure whose values a table has."""
    caption = cell.caption.removesuffix(": values")
    names = [
        name
        for name, figure in FIGURES.items()
        if caption in (f"{figure.name[:1].upper()}{figure.name[1:]} over {figure.axis.title}",)
    ]
    (name,) = names
    return name


@column(r".* over (?:sequence length|batch|keys of a tile|queries of a tile): values", ".+")
def series_cells(cell: Cell) -> str:
    if cell.spot.page == "savings":
        return "as `sweep_cells` has it"
    name = figure_of(cell)
    figure, spot = FIGURES[name], cell.spot._replace(figure=name)
    backend, _, fixed = cell.row["Group"].partition("; ")
    position = list(cell.row.values())[1].replace(",", "")
    for shared, cases in series.series(spot.study, name).items():
        if shared.replace(",", "") == fixed.replace(",", ""):
            (case,) = (case for case in cases if f"{figure.axis.at(case)}" == position)
            break
    else:
        return f"no such series: {list(series.series(spot.study, name))}"
    value = of_line(spot, shared)[backend, case]
    heads = list(cell.row)
    if cell.head in heads[:2]:
        return cell.row[cell.head]
    ends = {row["outcome"] for row in calls.rows(spot.study, case, backend)} - {"completed"}
    return {
        heads[2]: f"{value.middle}" if value else NONE,
        "Interval": f"{value.ends[0]} {NONE} {value.ends[1]}" if value and value.ends else NONE,
        "n": f"{int(bool(value))}",
        "Not completed": ", ".join("OOM" if end == "oom_gpu" else end for end in ends) or NONE,
    }[cell.head]


@text(
    r"Interval: (?:in the table: )?n = 1: (?:95 % interval between order statistics of \d+ calls .*|no interval: (?:a ratio|counted).*)",
    "dl.facts",
)
def series_interval(spot: Spot, match: re.Match[str]) -> str:
    if spot.figure == "kernel_map":
        return f"Interval: in the table: n = 1: {series.OF_CALLS}"
    return f"Interval: n = 1: {FIGURES[spot.figure].how}"


@text(
    r"Heat map by (?P<over>sequence length and batch|batch and sequence length): kernel TFLOP/s from .*",
    "figcaption",
)
def map_description(spot: Spot, match: re.Match[str]) -> str:
    rates = map_rates(spot.study)
    low, high = (end(rates, key=lambda key: rates[key].middle) for end in (min, max))
    ends = [
        f"{rates[key].middle} ({key[0]}, sequence length {key[1].length}, batch {key[1].batch})"
        for key in (low, high)
    ]
    empty_cells = len(series.rows(spot)) - len(rates)
    remark = f" {empty_cells} cell{' has' if empty_cells == 1 else 's have'} no value." if empty_cells else ""
    return f"Heat map by {match['over']}: kernel TFLOP/s from {ends[0]} to {ends[1]}.{remark}"


def map_rates(study: Study) -> dict[tuple[str, Case], Value]:
    """By backend and case of the map."""
    return {
        (name, case): value
        for case in series.mapped(study)
        for name in calls.timed(study, case)
        if (value := calls.rate(study, case, name, "both"))
    }


@text(
    r"Of a forward and its backward together, 3\.5 times 4 B H S\^2 D FLOP, .* Replayed from CUDA graphs: heads .*",
    "figcaption",
)
def map_caption(spot: Spot, match: re.Match[str]) -> str:
    case = series.mapped(spot.study)[0]
    fixed = f"heads {case.heads}, head dim {case.dim}, {case.mask}, {case.dtype}, {series.DEVICE}"
    has_gaps = len(series.rows(spot)) > len(map_rates(spot.study))
    return (
        "Of a forward and its backward together, 3.5 times 4 B H S^2 D FLOP, half with a causal mask. Not comparable with MFU. "
        "Numbers: the median of a shape's calls; darker is more, on one scale for all heat maps."
        + (
            " A cell with a dashed edge has no value, and says how its runs ended. OOM: out of memory."
            if has_gaps
            else ""
        )
        + f" Replayed from CUDA graphs: {fixed}. Left out: backends without a time at any of these shapes."
    )


@column(r"Kernel TFLOP/s by sequence length and batch: values", ".+")
def map_cells(cell: Cell) -> str:
    heads, study = list(cell.row), cell.spot.study
    batch_and_length = [int(cell.row[head].replace(",", "")) for head in ("Batch", "Sequence length")]
    (case,) = (case for case in series.mapped(study) if [case.batch, case.length] == batch_and_length)
    value = map_rates(study).get((cell.first, case))
    if cell.head in heads[:3]:
        return cell.row[cell.head]
    return {
        heads[3]: f"{value.middle}" if value else NONE,
        "Interval": f"{value.ends[0]} {NONE} {value.ends[1]}" if value and value.ends else NONE,
        "n": f"{int(bool(value))}",
        "Not completed": NONE if value else "OOM",
    }[cell.head]


def label(study: Study, name: str, case: Case) -> str:
    """Of a gain: the backend, and the shape where there are several."""
    if len({fp8_case for _, fp8_case, _ in series.gains(study)}) == 1:
        return name
    return f"{name}, B{case.batch} T{case.length} H{case.heads} D{case.dim} {case.mask}"


@text(r"Dot plot of the forward's speed in 8 bits over bfloat16: .*", "figcaption")
def gains_description(spot: Spot, match: re.Match[str]) -> str:
    texts = [f"{name} {gain(spot.study, *key).middle}" for name, key in of_gains(spot.study).items()]
    return f"Dot plot of the forward's speed in 8 bits over bfloat16: {'; '.join(texts)}."


def of_gains(study: Study) -> dict[str, tuple[str, Case, Case]]:
    """By label."""
    return {label(study, *key[:2]): key for key in series.gains(study)}


@column(r"Attention to numbers of 8 bits: values", ".+")
def gain_cells(cell: Cell) -> str:
    study, key = cell.spot.study, of_gains(cell.spot.study)[cell.first]
    value, (name, fp8_case, bfloat16_case) = gain(study, *key), key
    narrow, wide = (calls.time(study, case, name, "forward") for case in (fp8_case, bfloat16_case))
    rate = calls.rate(study, fp8_case, name, "forward")
    assert value.ends and narrow and wide and rate
    texts = {
        "backend": cell.first,
        "speed over bfloat16": f"{value.middle}",
        "95 % interval": f"{value.ends[0]} to {value.ends[1]}",
        "8 bits, ms": f"{narrow.middle}",
        "bfloat16, ms": f"{wide.middle}",
        "kernel TFLOP/s of 8 bits": f"{rate.middle}",
    }
    return texts[cell.head] if cell.head in texts else f"{errors(study, name, fp8_case)[cell.head]}"


@text(r"Interval: 95 % interval of the ratio of both medians; .*", "dl.facts")
@text(r"Of a forward, in runs of the two precisions at the same shape\. .*", "figcaption")
@text(r".*\b8 bits.*")
def words_of_8_bits(spot: Spot, match: re.Match[str]) -> str:
    """No number but the 8, the 4 and 3 of E4M3, and 95 %."""
    other_numbers = set(NUMBER.findall(match[0])) - {"8", "95", "64", "16"}
    return (
        match[0]
        if not other_numbers and calls.FP8 in {case.dtype for case in calls.cases(spot.study)}
        else "no 8 bits"
    )
