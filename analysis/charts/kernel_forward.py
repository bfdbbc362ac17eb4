"""Forward TFLOP/s of attention alone over sequence length: a line for each backend."""

from __future__ import annotations

from analysis.charts import Chart
from analysis.charts._kernel_lines import has, lines
from analysis.charts._kernel_measures import FORWARD
from analysis.charts._kernels import SEQUENCE
from analysis.query.kernels import KERNEL_TIMES

chart = Chart(
    title="Forward TFLOP/s over sequence length",
    page="kernels",
    order=61,
    question="How much of the device does the forward use at growing sequence lengths?",
    sql=KERNEL_TIMES,
    build=lines(SEQUENCE, FORWARD),
    applies=has(SEQUENCE),
    empty="No backend was timed at three such shapes.",
    warmup=None,
    tasks=("attention",),
)
