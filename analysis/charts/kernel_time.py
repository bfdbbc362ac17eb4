"""Milliseconds of attention alone over sequence length: a line for each backend."""

from __future__ import annotations

from analysis.charts import Chart
from analysis.charts._kernel_lines import has, lines
from analysis.charts._kernel_measures import TIME
from analysis.charts._kernels import SEQUENCE
from analysis.query.kernels import KERNEL_TIMES

chart = Chart(
    title="Attention alone",
    page="kernels",
    order=60,
    question="How long does attention alone take at growing sequence lengths?",
    sql=KERNEL_TIMES,
    build=lines(SEQUENCE, TIME),
    applies=has(SEQUENCE),
    empty="No backend was timed at three such shapes.",
    warmup=None,
    tasks=("attention",),
)
