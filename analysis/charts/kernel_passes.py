"""A backward's time over its forward's of attention alone over sequence length: a line for each backend."""

from __future__ import annotations

from analysis.charts import Chart
from analysis.charts._kernel_lines import has, lines
from analysis.charts._kernel_measures import PASSES
from analysis.charts._kernels import SEQUENCE
from analysis.query.kernels import KERNEL_TIMES

chart = Chart(
    title="Forward against backward",
    page="kernels",
    order=71,
    question="How much longer than its forward does a backward take?",
    sql=KERNEL_TIMES,
    build=lines(SEQUENCE, PASSES),
    applies=has(SEQUENCE),
    empty="No backend was timed at three such shapes.",
    warmup=None,
    tasks=("attention",),
)
