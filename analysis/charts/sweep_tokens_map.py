"""Tokens per second over two numeric axes of the study, as heat maps."""

from __future__ import annotations

from analysis.charts import Chart
from analysis.charts._quantities import TOKENS
from analysis.charts._sweep import mapped
from analysis.charts._sweep_map import maps
from analysis.query.sweeps import SWEEP_RUNS

chart = Chart(
    title="Throughput over two axes",
    page="sweeps",
    order=6,
    question="How does throughput change with two numeric axes at once?",
    sql=SWEEP_RUNS,
    build=maps(TOKENS),
    applies=mapped,
    empty="No run of this sweep completed with tokens per second.",
    tasks=("training", "inference"),
)
