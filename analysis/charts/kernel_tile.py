"""Time of attention alone by the size of its tiles: a row for each tile, in it a mark for each backend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from analysis import stats
from analysis.charts import Chart, Figure, Row, Styles
from analysis.charts._kernels import (
    OTHER_SHAPE,
    Point,
    Series,
    ShapeAxis,
    backend_names,
    how_called,
    points,
    series_along,
    sizes,
)
from analysis.charts._quantities import CellQuantity, with_decimals
from analysis.charts._rows import TOP, interval_lines, rows_height, y_of
from analysis.charts._style import INK, axis_ends, colours, inline, shapes, styles, styles_for, vega_lite
from analysis.charts._sweep import (
    Sweep,
    SweepCell,
    abbreviations,
    interval_ends,
    interval_methods,
    range_description,
    sweep_table,
)
from analysis.charts._values import of_estimates
from analysis.charts.kernels import TIME
from analysis.query.statements import KERNEL_TIMES_AND_GONE
from analysis.wording import listed

if TYPE_CHECKING:
    import altair as alt

Times = dict[tuple[str, str], stats.Estimate]  # by tile and backend

_TILES = ShapeAxis(
    "tile",
    # Queries and keys at once: a number of its own for each pair.
    lambda point: float(point.shape["tile_queries"] * 2**32 + point.shape["tile_keys"]),
    (sizes("batch", "sequence_length", "heads", "head_dim"),),
    of_tiles=True,
)


def of_tiles(every: list[Point]) -> list[Series]:
    """The points of each shape that was called in several tiles; the figure shows the first."""
    return series_along(every, _TILES, fewest=2)


def _build(rows: list[Row], _styles: Styles) -> Figure | None:
    every_point = points(rows)
    every = of_tiles(every_point)
    shown = _in_order(every[0].points) if every else []
    cells = [_cell(point) for point in shown]
    timed = {(point.tile, point.attention): time for point in shown if (time := point.time("both"))}
    if not timed:
        return None
    quantity = with_decimals(TIME.quantity, timed.values())
    without = [estimate.low is None for estimate in timed.values()]
    sentences = [quantity.what, "Tiles: queries x keys.", f"Marks: {quantity.numbers}."]
    if not all(without):
        ranges = " or ranges of the runs" if any(one.is_range for one in timed.values()) else ""
        sentences.append(f"Lines: intervals{ranges}{' where there is one' if any(without) else ''}.")
    if len(timed) < len(cells):
        sentences.append(f"Without a time: {_without_a_time(shown, cells)}.")
    sentences += [*abbreviations(cells), f"{how_called(rows)}: {every[0].fixed}."]
    if every[1:]:
        sentences.append(f"The table has {len(every) - 1} more series.")
    whole = [_cell(point, f"; {part.fixed}") for part in every for point in _in_order(part.points)]
    backends = styles_for({backend for _, backend in timed}, styles(backend_names(every_point)))
    return Figure(
        spec=_plot(timed, backends, quantity),
        caption=" ".join(sentences),
        description=f"Dot plot by tile and backend: {range_description(cells, (), quantity)}",
        interval=interval_methods(cells),
        used=frozenset(run for cell in whole if cell.estimate for run in cell.shown),
        finding=_finding(timed, quantity),
        table=sweep_table(Sweep((), {}, tuple(whole), ()), quantity),
    )


def _in_order(points: list[Point]) -> list[Point]:
    return sorted(points, key=lambda point: (_TILES.value(point), point.attention))


def _cell(point: Point, fixed: str = "") -> SweepCell:
    name = f"{point.tile}, {point.attention}{fixed}"
    return SweepCell(name, {}, name, point.time("both"), point.gone(), len(point.runs), point.runs)


def _without_a_time(shown: list[Point], cells: list[SweepCell]) -> str:
    """`flash1 in 64 x 512 and 512 x 64 (unsupported)`: tiles in which the same backends ended alike."""
    backends: dict[tuple[str, str], list[str]] = {}
    for point, cell in zip(shown, cells, strict=True):
        if not cell.estimate:
            backends.setdefault((point.tile, cell.word), []).append(point.attention)
    alike = stats.grouped(backends, lambda ended: (listed(backends[ended]), ended[1]))
    return "; ".join(
        f"{who} in {listed([tile for tile, _ in tiles])} ({word})" for (who, word), tiles in alike.items()
    )


def _finding(timed: Times, quantity: CellQuantity) -> str:
    """Each backend's shortest time and its tile, the shortest of all first."""
    shortest: dict[str, str] = {}
    for (tile, backend), estimate in sorted(timed.items(), key=lambda item: item[1].median):
        shortest.setdefault(backend, f"{estimate.median:{quantity.number}} ms ({backend}) in {tile}")
    return f"Shortest time over tiles: {', '.join(shortest.values())}"


def _plot(timed: Times, backends: Styles, quantity: CellQuantity) -> dict[str, Any]:
    import altair as alt

    marks: list[Row] = [
        {"tile": tile, "label": backend, "time": estimate.median, "low": estimate.low, "high": estimate.high,
         "interval": interval_ends(estimate, quantity.number)}
        for (tile, backend), estimate in timed.items()
    ]  # fmt: skip
    tiles = list(dict.fromkeys(tile for tile, _ in timed))
    y = y_of(tiles, "tile")
    start, end = axis_ends((value for value in of_estimates(timed.values()) if value is not None), zero=False)
    title = f"{quantity.title} (from {start:,.10g})" if start else quantity.title
    scale = alt.Scale(domain=[start, end], nice=False, zero=False)

    def x(field: str) -> alt.X:
        return alt.X(f"{field}:Q", title=title, scale=scale, axis=alt.Axis(grid=False, tickCount=5))

    legend = None
    if len(backends) > 1:
        legend = alt.Legend(title=None, orient="top", symbolOpacity=1, labelColor=INK, labelFontSize=12)
    colour = colours(backends, legend)
    tips = [
        alt.Tooltip("label:N", title="backend"),
        alt.Tooltip("tile:N"),
        alt.Tooltip("time:Q", title=quantity.title, format=quantity.number),
        alt.Tooltip("interval:N"),
    ]
    layers = interval_lines(marks, x("low"), y=y, color=colour, tooltip=tips)
    mark = inline(marks).mark_point(filled=True, size=75, opacity=1)
    layers.append(mark.encode(x=x("time"), y=y, color=colour, shape=shapes(backends, legend), tooltip=tips))
    return vega_lite(layers, rows_height(tiles), TOP)


chart = Chart(
    title="Time by tile",
    page="kernels",
    order=77,
    question="In which of the tiles is attention the fastest?",
    sql=KERNEL_TIMES_AND_GONE,
    build=_build,
    applies=lambda rows: bool(of_tiles(points(rows))),
    empty="No backend was timed in two tiles of one shape.",
    absent=OTHER_SHAPE,
    warmup=None,
    tasks=("attention",),
)
