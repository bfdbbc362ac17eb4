"""Milliseconds of attention alone over the embedding dim: a line for each backend."""

from __future__ import annotations

from analysis.charts import Chart
from analysis.charts._kernel_lines import has, lines
from analysis.charts._kernel_measures import TIME
from analysis.charts._kernels import WIDTH
from analysis.query.kernels import KERNEL_TIMES

chart = Chart(
    title="Time over embedding dim",
    page="kernels",
    order=68,
    question="How does the time of attention grow with the embedding dim?",
    sql=KERNEL_TIMES,
    build=lines(WIDTH, TIME),
    applies=has(WIDTH),
    empty="No backend was timed at three such shapes.",
    warmup=None,
    tasks=("attention",),
)
