"""Peak memory over a numeric axis of the study."""

from __future__ import annotations

from analysis.charts import Chart
from analysis.charts._quantities import PEAK_MEMORY
from analysis.charts._sweep import swept
from analysis.charts._sweep_lines import lines
from analysis.query.sweeps import SWEEP_RUNS

chart = Chart(
    title="Peak memory over an axis",
    page="sweeps",
    order=8,
    question="How does peak memory change along the study's numeric axes, and where does it run out?",
    sql=SWEEP_RUNS,
    build=lines(PEAK_MEMORY),
    applies=swept,
    empty="No run of this sweep completed with peak memory.",
    warmup=False,
    tasks=("training", "inference"),
)
