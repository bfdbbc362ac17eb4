"""Seconds per step over a numeric axis of the study."""

from __future__ import annotations

from analysis.charts import Chart
from analysis.charts._quantities import STEP_SECONDS
from analysis.charts._sweep import swept
from analysis.charts._sweep_lines import lines
from analysis.query.sweeps import SWEEP_RUNS

chart = Chart(
    title="Time of one step over an axis",
    page="sweeps",
    order=7,
    question="How does the time of a step change along the study's numeric axes?",
    sql=SWEEP_RUNS,
    build=lines(STEP_SECONDS),
    applies=swept,
    empty="No run of this sweep completed with seconds per step.",
)
