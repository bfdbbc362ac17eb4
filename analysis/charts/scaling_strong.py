"""Strong scaling: how much faster the same batch is trained on by more processes."""

from __future__ import annotations

from analysis.charts import Chart, Figure, Row, Styles
from analysis.charts._scaling import figure, of_kind
from analysis.query.findings import MEASURED_RUNS
from analysis.verdicts.scaling import ScalingPoint


def _speedup(point: ScalingPoint, ratio: float) -> float:
    """Against one process; a curve that starts at several starts as ideal."""
    return ratio * point.processes / float(point.scale)


def _build(rows: list[Row], _styles: Styles) -> Figure | None:
    said = (
        "Tokens per second of all processes together, over those of the first mark, at the same batch: "
        "strong scaling. The dashed line is ideal: n times the processes, n times the rate."
    )
    return figure(rows, "strong", "speedup", _speedup, ".2f", said)


chart = Chart(
    title="Scaling",
    page="scaling",
    order=2,
    question="How much faster is a step at a constant batch on more processes?",
    sql=MEASURED_RUNS,
    build=_build,
    absent="on no line of strong scaling",
    applies=of_kind("strong"),
)
