"""Tokens per second over a numeric axis of the study."""

from __future__ import annotations

from analysis.charts import Chart
from analysis.charts._quantities import TOKENS
from analysis.charts._sweep import swept
from analysis.charts._sweep_lines import lines
from analysis.query.sweeps import SWEEP_RUNS

chart = Chart(
    title="Sweeps",
    page="sweeps",
    order=6,
    question="How does throughput change along the study's numeric axes?",
    sql=SWEEP_RUNS,
    build=lines(TOKENS),
    applies=swept,
    empty="No run of this sweep completed with tokens per second.",
    tasks=("training", "inference"),
)
