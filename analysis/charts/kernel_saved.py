"""Memory saved against plain attention of attention alone over sequence length: a line for each backend."""

from __future__ import annotations

from analysis.charts import Chart
from analysis.charts._kernel_lines import lines
from analysis.charts._kernel_measures import SAVED, compared
from analysis.charts._kernels import SEQUENCE
from analysis.query.kernels import KERNEL_TIMES

chart = Chart(
    title="Memory saved over sequence length",
    page="kernels",
    order=65,
    question="How much memory does each backend save against plain attention?",
    sql=KERNEL_TIMES,
    build=lines(SEQUENCE, SAVED),
    applies=compared,
    empty="No backend was timed at three such shapes.",
    warmup=None,
    tasks=("attention",),
)
