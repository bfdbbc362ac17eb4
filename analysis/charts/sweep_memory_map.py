"""Peak memory over two numeric axes of the study, as heat maps."""

from __future__ import annotations

from analysis.charts import Chart
from analysis.charts._quantities import PEAK_MEMORY
from analysis.charts._sweep import mapped
from analysis.charts._sweep_map import maps
from analysis.query.sweeps import SWEEP_RUNS

chart = Chart(
    title="Peak memory over two axes",
    page="sweeps",
    order=8,
    question="How does peak memory change with two numeric axes at once, and where does it run out?",
    sql=SWEEP_RUNS,
    build=maps(PEAK_MEMORY),
    applies=mapped,
    empty="No run of this sweep completed with peak memory.",
    warmup=False,
    tasks=("training", "inference"),
)
