"""Kernel TFLOP/s of attention alone over the head dim: a line for each backend."""

from __future__ import annotations

from analysis.charts import Chart
from analysis.charts._kernel_lines import has, lines
from analysis.charts._kernel_measures import RATE
from analysis.charts._kernels import HEAD_DIM
from analysis.query.kernels import KERNEL_TIMES

chart = Chart(
    title="Rate over head dim",
    page="kernels",
    order=69,
    question="How does the rate of attention change with the head dim?",
    sql=KERNEL_TIMES,
    build=lines(HEAD_DIM, RATE),
    applies=has(HEAD_DIM),
    empty="No backend was timed at three such shapes.",
    warmup=None,
    tasks=("attention",),
)
