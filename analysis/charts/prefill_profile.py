"""Where the time of a prefill goes."""

from __future__ import annotations

from analysis.charts import Chart
from analysis.charts._parts import FORWARD
from analysis.charts._profile import Profiled

_PREFILL = Profiled(
    noun="prefill",
    phase="step",
    timed="r.step_seconds AS timed_seconds, r.floor_seconds, r.floor_percentage",
    which="a few more prefills of the run's last prompts",
    floor=(
        "each product at its own rate, causal attention at the rate of the products, and what the other "
        "parts must read and write at the memory bandwidth (model/measure/floor_inference.py)."
    ),
    parts=FORWARD,
)
chart = Chart(
    title="Where the time of a prefill goes",
    page="prefill",
    order=14,
    question="What does a prefill spend its time on, and how little could it take?",
    sql=_PREFILL.sql,
    build=_PREFILL.build,
    empty="No prefill of this study was profiled.",
    warmup=None,
    applies=bool,
    tasks=("inference",),
)
