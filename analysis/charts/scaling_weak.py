"""Weak scaling: what a process is worth where each more brings a batch of its own."""

from __future__ import annotations

from analysis.charts import Chart, Figure, Row, Styles
from analysis.charts._scaling import figure, of_kind
from analysis.query.findings import MEASURED_RUNS
from analysis.verdicts.scaling import ScalingPoint


def _percent(point: ScalingPoint, ratio: float) -> float:
    return 100 * ratio / float(point.scale)


def _build(rows: list[Row], _styles: Styles) -> Figure | None:
    said = (
        "Tokens per second and process over those of the first mark, in percent, where the batch grows with "
        "the processes: weak scaling. The dashed line is ideal: a process is as fast among many as among few."
    )
    return figure(rows, "weak", "efficiency, percent", _percent, ".1f", said)


chart = Chart(
    title="Scaling",
    page="scaling",
    order=3,
    question="How much of its rate does a process keep when every added process brings its own batch?",
    sql=MEASURED_RUNS,
    build=_build,
    absent="on no line of weak scaling",
    applies=of_kind("weak"),
)
