"""Kernel TFLOP/s of attention alone over the number of heads: a line for each backend."""

from __future__ import annotations

from analysis.charts import Chart
from analysis.charts._kernel_lines import has, lines
from analysis.charts._kernel_measures import RATE
from analysis.charts._kernels import HEADS
from analysis.query.kernels import KERNEL_TIMES

chart = Chart(
    title="Rate over heads",
    page="kernels",
    order=67,
    question="Into how many heads should one embedding dim be split?",
    sql=KERNEL_TIMES,
    build=lines(HEADS, RATE),
    applies=has(HEADS),
    empty="No backend was timed at three such shapes.",
    warmup=None,
    tasks=("attention",),
)
