"""Peak memory of attention alone over sequence length: a line for each backend."""

from __future__ import annotations

from analysis.charts import Chart
from analysis.charts._kernel_lines import has, lines
from analysis.charts._kernel_measures import MEMORY
from analysis.charts._kernels import SEQUENCE
from analysis.query.kernels import KERNEL_TIMES

chart = Chart(
    title="Memory over sequence length",
    page="kernels",
    order=64,
    question="How much memory does attention need at growing sequence lengths, and where does it run out?",
    sql=KERNEL_TIMES,
    build=lines(SEQUENCE, MEMORY),
    applies=has(SEQUENCE),
    empty="No backend was timed at three such shapes.",
    warmup=None,
    tasks=("attention",),
)
