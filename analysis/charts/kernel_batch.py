"""Milliseconds of attention alone over the batch: a line for each backend."""

from __future__ import annotations

from analysis.charts import Chart
from analysis.charts._kernel_lines import has, lines
from analysis.charts._kernel_measures import TIME
from analysis.charts._kernels import BATCH
from analysis.query.kernels import KERNEL_TIMES

chart = Chart(
    title="Time over batch",
    page="kernels",
    order=66,
    question="How does the time of attention grow with the batch?",
    sql=KERNEL_TIMES,
    build=lines(BATCH, TIME),
    applies=has(BATCH),
    empty="No backend was timed at three such shapes.",
    warmup=None,
    tasks=("attention",),
)
