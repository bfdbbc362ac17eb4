"""Eager time over time in a CUDA graph of attention alone over sequence length: a line for each backend."""

from __future__ import annotations

from analysis.charts import Chart
from analysis.charts._kernel_lines import lines
from analysis.charts._kernel_measures import HOST, replayed
from analysis.charts._kernels import SEQUENCE
from analysis.query.kernels import KERNEL_TIMES

chart = Chart(
    title="Eager against CUDA graph",
    page="kernels",
    order=72,
    question="How much of the time is the host's?",
    sql=KERNEL_TIMES,
    build=lines(SEQUENCE, HOST),
    applies=replayed,
    empty="No backend was timed at three such shapes.",
    warmup=None,
    tasks=("attention",),
)
