"""Speedup against plain attention of attention alone over sequence length: a line for each backend."""

from __future__ import annotations

from analysis.charts import Chart
from analysis.charts._kernel_lines import lines
from analysis.charts._kernel_measures import SPEEDUP, compared
from analysis.charts._kernels import SEQUENCE
from analysis.query.kernels import KERNEL_TIMES

chart = Chart(
    title="Speedup over sequence length",
    page="kernels",
    order=63,
    question="How many times as fast as plain attention is each backend?",
    sql=KERNEL_TIMES,
    build=lines(SEQUENCE, SPEEDUP),
    applies=compared,
    empty="No backend was timed at three such shapes.",
    warmup=None,
    tasks=("attention",),
)
