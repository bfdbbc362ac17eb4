"""Time with a causal mask over time without, over sequence length: a line for each backend."""

from __future__ import annotations

from analysis.charts import Chart
from analysis.charts._kernel_lines import lines
from analysis.charts._kernel_measures import MASK, masked
from analysis.charts._kernels import SEQUENCE
from analysis.query.kernels import KERNEL_TIMES

chart = Chart(
    title="Causal or not",
    page="kernels",
    order=70,
    question="How much of the time does a causal mask save?",
    sql=KERNEL_TIMES,
    build=lines(SEQUENCE, MASK),
    applies=masked,
    empty="No backend was timed at three such shapes.",
    warmup=None,
    tasks=("attention",),
)
