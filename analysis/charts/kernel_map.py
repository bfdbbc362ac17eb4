"""Kernel TFLOP/s of attention alone over batch and sequence length: a heat map for each backend."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from analysis.charts import Chart, Figure
from analysis.charts._kernels import (
    BATCH,
    OTHER_SHAPE,
    SEQUENCE,
    Series,
    ShapeAxis,
    how_called,
    points,
    series_along,
    sizes,
)
from analysis.charts._quantities import with_decimals
from analysis.charts._sweep import Sweep, SweepCell
from analysis.charts._sweep_map import maps_over
from analysis.charts.kernels import RATE, shape_axis
from analysis.query.statements import KERNEL_TIMES_AND_GONE

if TYPE_CHECKING:
    from analysis.charts import Row, Styles

_AXES = (SEQUENCE, BATCH)
# Both at once: a number of its own for each place.
_PLACES = ShapeAxis(
    "batch and sequence length",
    lambda point: BATCH.value(point) * 2**32 + SEQUENCE.value(point),
    (sizes("heads", "head_dim"),),
)


def _build(rows: list[Row], _styles: Styles) -> Figure | None:
    shown = _shown(rows)
    if shown is None:
        return None
    timed = {point.attention for point in shown.points if point.time("both")}
    timed_points = sorted(
        (point for point in shown.points if point.attention in timed), key=lambda point: point.attention
    )
    if not timed_points:
        return None
    cells = []
    for point in timed_points:
        name, at = point.attention, {axis.title: axis.value(point) for axis in _AXES}
        cells.append(SweepCell(name, at, name, point.rate("both"), point.gone(), len(point.runs), point.runs))
    quantity = with_decimals(RATE.quantity, (cell.estimate for cell in cells if cell.estimate))
    axes = tuple(shape_axis(axis, timed_points) for axis in _AXES)
    figure = maps_over(Sweep(axes, {}, tuple(cells), ()), quantity)
    sentence = f"{how_called(rows)}: {shown.fixed}. Left out: backends without a time at any of these shapes."
    return figure and replace(figure, caption=f"{figure.caption} {sentence}")


def _shown(rows: list[Row]) -> Series | None:
    """The shapes that differ in batch and sequence length alone, where each varies while the other stays."""
    for part in series_along(points(rows), _PLACES, fewest=4):
        places = {tuple(axis.value(point) for axis in _AXES) for point in part.points}
        if all(len({place[axis] for place in places}) < len(places) for axis in range(len(_AXES))):
            return part
    return None


chart = Chart(
    title="Rate over batch and sequence length",
    page="kernels",
    order=73,
    question="From which batch and sequence length on is the device well used?",
    sql=KERNEL_TIMES_AND_GONE,
    build=_build,
    applies=lambda rows: _shown(rows) is not None,
    empty="No backend was timed at several batches and sequence lengths.",
    absent=OTHER_SHAPE,
    warmup=None,
    tasks=("attention",),
)
