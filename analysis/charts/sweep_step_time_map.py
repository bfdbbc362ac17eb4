"""Seconds per step over two numeric axes of the study, as heat maps."""

from __future__ import annotations

from analysis.charts import Chart
from analysis.charts._quantities import STEP_SECONDS
from analysis.charts._sweep import mapped
from analysis.charts._sweep_map import maps
from analysis.query.sweeps import SWEEP_RUNS

chart = Chart(
    title="Time of one step over two axes",
    page="sweeps",
    order=7,
    question="How does the time of a step change with two numeric axes at once?",
    sql=SWEEP_RUNS,
    build=maps(STEP_SECONDS),
    applies=mapped,
    empty="No run of this sweep completed with seconds per step.",
)
