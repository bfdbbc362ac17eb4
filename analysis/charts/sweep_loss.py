"""Final loss over a numeric axis of the study."""

from __future__ import annotations

from analysis.charts import Chart
from analysis.charts._quantities import FINAL_LOSS
from analysis.charts._sweep import swept
from analysis.charts._sweep_lines import lines
from analysis.query.sweeps import SWEEP_RUNS

chart = Chart(
    title="Final loss over an axis",
    page="sweeps",
    order=9,
    question="How does the final loss change along the study's numeric axes?",
    sql=SWEEP_RUNS,
    build=lines(FINAL_LOSS),
    applies=swept,
    empty="No run of this sweep completed with final loss.",
    warmup=None,
)
