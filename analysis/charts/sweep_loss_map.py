"""Final loss over two numeric axes of the study, as heat maps."""

from __future__ import annotations

from analysis.charts import Chart
from analysis.charts._quantities import FINAL_LOSS
from analysis.charts._sweep import mapped
from analysis.charts._sweep_map import maps
from analysis.query.sweeps import SWEEP_RUNS

chart = Chart(
    title="Final loss over two axes",
    page="sweeps",
    order=9,
    question="How does the final loss change with two numeric axes at once?",
    sql=SWEEP_RUNS,
    build=maps(FINAL_LOSS),
    applies=mapped,
    empty="No run of this sweep completed with final loss.",
    warmup=None,
)
