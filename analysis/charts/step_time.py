"""Median seconds per step of every completed run."""

from __future__ import annotations

from analysis.charts import Chart, Figure, Row, Styles
from analysis.charts._dots import Axis
from analysis.charts._rates import dots
from analysis.query.rates import COMPLETED_RUNS


def _build(rows: list[Row], styles: Styles) -> Figure | None:
    if not rows:
        return None
    what = "Seconds per step: the median of a run's step records after the warm-up."
    return dots(rows, styles, Axis("seconds per step", ".4f"), lambda _row, seconds: seconds, what)


chart = Chart(
    title="Time of one step",
    page="time",
    order=41,
    question="How long does one optimizer step take?",
    sql=COMPLETED_RUNS,
    build=_build,
    empty="No run completed with step records after the warm-up.",
)
