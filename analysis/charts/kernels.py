"""Figures of attention alone: a line for each backend over shapes that differ in one thing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from analysis import stats
from analysis.charts import Chart, Figure
from analysis.charts._kernels import (
    BATCH,
    HEAD_DIM,
    HEADS,
    OTHER_SHAPE,
    SEQUENCE,
    TILE_KEYS,
    TILE_QUERIES,
    UNMASKED,
    WIDTH,
    Point,
    ShapeAxis,
    backend_names,
    both_masks,
    how_called,
    mode_of,
    points,
    series_along,
    shape_key,
)
from analysis.charts._quantities import CellQuantity, with_decimals
from analysis.charts._reported import REPORTED
from analysis.charts._sweep import Sweep, SweepAxis, SweepCell, sweep_table
from analysis.charts._sweep_lines import lines_over
from analysis.query.statements import KERNEL_TIMES
from analysis.stats import Estimate, over_runs
from analysis.wording import capital, readable

if TYPE_CHECKING:
    from analysis.charts import Row

ValueOf = Callable[[Point], stats.Estimate | None]
GoneOf = Callable[[Point], dict[str, int]]
CALLS = "the median of a shape's calls"
GONE = "no time there, and why"


@dataclass(frozen=True)
class Measure:
    """A quantity of a backend at a shape.

    Attributes:
        of: all points -> what gives a point its value.
        ends: what the first and the last of it are called.
        highest: whether more is better.
        among: all points -> those that the figure is about.
        gone: all points -> what says of a point how runs without a time ended, in a word, and how many.
        how: how the calls were made; as most of them were where it is empty.
        against: the backend that all are compared with; empty without one.
        reported: the quantity that others may report of a point; empty for none.
    """

    quantity: CellQuantity
    of: Callable[[list[Point]], ValueOf]
    ends: tuple[str, str] = ("lowest", "highest")
    highest: bool = False
    among: Callable[[list[Point]], list[Point]] = lambda points: points
    gone: Callable[[list[Point]], GoneOf] = lambda _points: Point.gone
    how: str = ""
    against: str = ""
    reported: str = ""


def _quantity(name: str, unit: str, number: str, what: str, numbers: str = CALLS) -> CellQuantity:
    """A quantity whose values come from points, not from runs."""
    return CellQuantity(name, unit, number, what, lambda _rows: {}, True, GONE, numbers)


def varies(axis: ShapeAxis) -> Callable[[list[Row]], bool]:
    """Whether a study has shapes that differ in this alone."""
    return lambda rows: bool(series_along(points(rows), axis))


def lines_over_shapes(rows: list[Row], axis: ShapeAxis, measure: Measure) -> Figure | None:
    """Draw a measure over the shapes that differ along one axis alone; None without a value."""
    every_point = points(rows)
    value, gone = measure.of(every_point), measure.gone(every_point)
    every = series_along(measure.among(every_point), axis, has_value=lambda point: value(point) is not None)
    if not every:
        return None

    def cell(point: Point, name: str) -> SweepCell:
        at = {axis.title: axis.value(point)}
        rows = [row for of_way in point.calls.values() for row in of_way]
        marks = rows[0].get(REPORTED, {}).get(measure.reported, ()) if rows and value(point) else ()
        runs = point.runs
        return SweepCell(point.attention, at, name, value(point), gone(point), len(runs), runs, marks)

    shown = every[0]
    cells = [cell(point, point.attention) for point in shown.points]
    estimates = [item.estimate for item in cells if item.estimate]
    if not estimates:
        return None
    exact = with_decimals(measure.quantity, estimates)
    x = shape_axis(axis, shown.points)
    by_name = {name: [item for item in cells if item.rest == name] for name in backend_names(every_point)}
    by_name = {
        name: line for name, line in by_name.items() if any(item.estimate or item.word for item in line)
    }
    figure = lines_over(Sweep((x,), {}, tuple(cells), ()), by_name, measure.quantity)
    if figure is None:
        return None

    more = f" The table has {len(every) - 1} more series." if every[1:] else ""
    all_points = [(point, part) for part in every for point in part.points]
    all_cells = tuple(cell(point, f"{point.attention}; {part.fixed}") for point, part in all_points)
    whole = shape_axis(axis, [point for point, _ in all_points])
    return replace(
        figure,
        title=f"{capital(exact.name)} over {axis.title}",
        caption=f"{figure.caption} {measure.how or how_called(rows)}: {shown.fixed}.{more}",
        used=frozenset(run for point, _ in all_points for run in point.runs),
        finding=_finding(by_name, x, measure, exact),
        table=sweep_table(Sweep((whole,), {}, all_cells, ()), exact),
    )


def shape_axis(axis: ShapeAxis, shown: list[Point]) -> SweepAxis:
    """The axis with the values of these points."""
    return SweepAxis(axis.title, axis.title, tuple(sorted({axis.value(point) for point in shown})))


def _finding(
    by_name: dict[str, list[SweepCell]], x: SweepAxis, measure: Measure, exact: CellQuantity
) -> str | None:
    """The best and the worst where most backends have a value, the largest such value of the axis."""
    medians: dict[float, dict[str, float]] = {value: {} for value in x.values}
    for name, line in by_name.items():
        for cell in line:
            if cell.estimate:
                medians[cell.at[x.name]][name] = cell.estimate.median
    last = max(x.values, key=lambda value: (len(medians[value]), value))
    others = [name for name in medians[last] if name != measure.against]
    ordered = sorted(others, key=lambda name: medians[last][name], reverse=measure.highest)
    if not ordered:
        return None
    texts = [
        f"{readable(medians[last][name], '#,.3g')}{exact.suffix} ({name})"
        for name in (ordered[0], ordered[-1])
    ]
    start = f"{capital(exact.name)} at {x.title} {x.text(last)}"
    if len(ordered) == 1:
        return f"{start}: {texts[0]}"
    return f"{start}: {measure.ends[0]} {texts[0]}, {measure.ends[1]} {texts[1]}"


REFERENCE = "math"  # attention by PyTorch's own operators, which every device has
_BOTH = "a forward and its backward together"
_RATIO = "the ratio of two medians of a shape's calls"
_NO_INTERVAL = "no interval: a ratio of two medians"
_COUNTED = "no interval: counted, not sampled"
_RATE = "{}4 B H S^2 D FLOP, half with a causal mask. Not comparable with MFU."


def _has_reference(rows: list[Row]) -> bool:
    """Whether the reference was called, at several sequence lengths."""
    return any(row["attention"] == REFERENCE for row in rows) and varies(SEQUENCE)(rows)


def _within(over: list[Row], under: list[Row], column: str = "milliseconds") -> Estimate | None:
    """The ratio of two numbers from the same process; with several processes, the median of their ratios."""
    values = {row["run_id"]: row[column] for row in over if row[column] is not None}
    pairs = [(values[row["run_id"]], row[column]) for row in under if row[column] and row["run_id"] in values]
    if not pairs:
        return None
    ratio = over_runs([a / b for a, b in pairs])
    method = _COUNTED if column == "memory_bytes" else _NO_INTERVAL
    return replace(ratio, method=method) if ratio.n == 1 else ratio


def _memory(point: Point) -> Estimate | None:
    peak_bytes = point.median("memory_bytes", "both", "eager")
    if peak_bytes is None:
        return None
    return Estimate(peak_bytes / 2**20, None, None, len(point.runs), _COUNTED)


def _beside_reference(value: Callable[[Point, Point], Estimate | None]) -> Callable[[list[Point]], ValueOf]:
    """The value of a point and the reference at the same shape; None where the reference was not called."""

    def of_points(every_point: list[Point]) -> ValueOf:
        references = {shape_key(point): point for point in every_point if point.attention == REFERENCE}
        return lambda point: (
            value(point, reference) if (reference := references.get(shape_key(point))) else None
        )

    return of_points


def _saved(point: Point, reference: Point) -> Estimate | None:
    share = _within(point.rows("both", "eager"), reference.rows("both", "eager"), "memory_bytes")
    return share.map(lambda part: 100 * (1 - part)) if share else None


def _mask(point: Point) -> Estimate | None:
    masked, unmasked = point.time("both"), point.time(UNMASKED)
    if not masked or not unmasked:
        return None
    return Estimate(masked.median / unmasked.median, None, None, min(masked.n, unmasked.n), _NO_INTERVAL)


def _eagerly(_points: list[Point]) -> GoneOf:
    return lambda point: point.gone(mode="eager")


TIME = Measure(
    _quantity("time", "ms", ",.2f", f"{_BOTH.capitalize()}, with cold caches and new numbers."),
    lambda _points: lambda point: point.time("both"),
    ends=("shortest", "longest"),
    reported="both_milliseconds",
)
FORWARD = Measure(
    _quantity("forward TFLOP/s", "", ",.0f", _RATE.format("Of a forward, ")),
    lambda _points: lambda point: point.rate("forward"),
    ends=("highest", "lowest"),
    highest=True,
    reported="forward_tflops",
)
BACKWARD = Measure(
    _quantity("backward TFLOP/s", "", ",.0f", _RATE.format("Of a backward, 2.5 times ")),
    lambda _points: lambda point: point.rate("backward"),
    ends=("highest", "lowest"),
    highest=True,
    reported="backward_tflops",
)
RATE = Measure(
    _quantity("kernel TFLOP/s", "", ",.0f", _RATE.format(f"Of {_BOTH}, 3.5 times ")),
    lambda _points: lambda point: point.rate("both"),
    ends=("highest", "lowest"),
    highest=True,
    reported="both_tflops",
)
MEMORY = Measure(
    _quantity(
        "peak memory",
        "MiB",
        ",.1f",
        f"Allocated by PyTorch in {_BOTH}, beyond Q, K, V and the output's gradient.",
        "the peak at a shape",
    ),
    lambda _points: _memory,
    gone=_eagerly,
    how="Counted in calls from Python",
    reported="call_memory_bytes",
)
SPEEDUP = Measure(
    _quantity(
        f"speedup over {REFERENCE}",
        "",
        ",.2f",
        f"Of {_BOTH}, in the same process. There is no value where {REFERENCE} has no time.",
        _RATIO,
    ),
    _beside_reference(lambda point, reference: _within(reference.rows("both"), point.rows("both"))),
    ends=("highest", "lowest"),
    highest=True,
    against=REFERENCE,
)
SAVED = Measure(
    _quantity(
        f"memory saved against {REFERENCE}",
        "percent",
        ".1f",
        f"Of {_BOTH}. There is no value where {REFERENCE} has none.",
        "what is saved at a shape",
    ),
    _beside_reference(_saved),
    ends=("highest", "lowest"),
    highest=True,
    against=REFERENCE,
    gone=_eagerly,
    how="Counted in calls from Python",
)
MASK = Measure(
    _quantity(
        "time with a causal mask over time without",
        "",
        ".2f",
        f"Of {_BOTH}. Who skips all that the mask hides takes half of the time.",
        _RATIO,
    ),
    lambda _points: _mask,
    among=both_masks,
    gone=lambda _points: lambda point: point.gone() or point.gone(direction=UNMASKED),
)
PASSES = Measure(
    _quantity(
        "backward over forward",
        "",
        ".2f",
        "By FLOP count it would be 2.5.",
        _RATIO,
    ),
    lambda _points: lambda point: _within(point.rows("backward"), point.rows("forward")),
)
HOST = Measure(
    _quantity(
        "eager over CUDA graph",
        "",
        ".2f",
        f"Of {_BOTH}: above 1 is the host's share.",
        _RATIO,
    ),
    lambda _points: lambda point: _within(point.rows("both", "eager"), point.rows("both", "graph")),
    how="The same along the axis",
)


def _line_chart(
    title: str,
    question: str,
    order: int,
    axis: ShapeAxis,
    measure: Measure,
    applies: Callable[[list[Row]], bool] | None = None,
) -> Chart:
    return Chart(
        title=title,
        page="kernels",
        order=order,
        question=question,
        sql=KERNEL_TIMES,
        build=lambda rows, _styles: lines_over_shapes(rows, axis, measure),
        applies=applies or varies(axis),
        empty="No backend was timed at three such shapes.",
        absent=OTHER_SHAPE,
        warmup=None,
        tasks=("attention",),
    )


charts = {
    "kernel_time": _line_chart(
        "Attention alone",
        "How long does attention alone take at growing sequence lengths?",
        60, SEQUENCE, TIME,
    ),
    "kernel_forward": _line_chart(
        "Forward TFLOP/s over sequence length",
        "How much of the device does the forward use at growing sequence lengths?",
        61, SEQUENCE, FORWARD,
    ),
    "kernel_backward": _line_chart(
        "Backward TFLOP/s over sequence length",
        "How much of the device does the backward use at growing sequence lengths?",
        62, SEQUENCE, BACKWARD,
    ),
    "kernel_speedup": _line_chart(
        "Speedup over sequence length",
        "How many times as fast as plain attention is each backend?",
        63, SEQUENCE, SPEEDUP, _has_reference,
    ),
    "kernel_memory": _line_chart(
        "Memory over sequence length",
        "How much memory does attention need at growing sequence lengths, and where does it run out?",
        64, SEQUENCE, MEMORY,
    ),
    "kernel_saved": _line_chart(
        "Memory saved over sequence length",
        "How much memory does each backend save against plain attention?",
        65, SEQUENCE, SAVED, _has_reference,
    ),
    "kernel_batch": _line_chart(
        "Time over batch",
        "How does the time of attention grow with the batch?",
        66, BATCH, TIME,
    ),
    "kernel_heads": _line_chart(
        "Rate over heads",
        "Into how many heads should one embedding dim be split?",
        67, HEADS, RATE,
    ),
    "kernel_width": _line_chart(
        "Time over embedding dim",
        "How does the time of attention grow with the embedding dim?",
        68, WIDTH, TIME,
    ),
    "kernel_width_rate": _line_chart(
        "Rate over embedding dim",
        "How does the rate of attention change with the number of its heads?",
        68, WIDTH, RATE,
    ),
    "kernel_head_dim": _line_chart(
        "Rate over head dim",
        "How does the rate of attention change with the head dim?",
        69, HEAD_DIM, RATE,
    ),
    "kernel_mask": _line_chart(
        "Causal or not",
        "How much of the time does a causal mask save?",
        70, SEQUENCE, MASK, lambda rows: bool(series_along(both_masks(points(rows)), SEQUENCE)),
    ),
    "kernel_passes": _line_chart(
        "Forward against backward",
        "How much longer than its forward does a backward take?",
        71, SEQUENCE, PASSES,
    ),
    "kernel_tile_keys": _line_chart(
        "Time over the keys of a tile",
        "How does the time of attention change with the keys that a tile has?",
        75, TILE_KEYS, TIME,
    ),
    "kernel_tile_queries": _line_chart(
        "Time over the queries of a tile",
        "How does the time of attention change with the queries that a tile has?",
        76, TILE_QUERIES, TIME,
    ),
    "kernel_host": _line_chart(
        "Eager against CUDA graph",
        "How much of the time is the host's?",
        72, SEQUENCE, HOST, lambda rows: mode_of(rows) == "graph" and varies(SEQUENCE)(rows),
    ),
}  # fmt: skip
