"""Where the time of a training step goes."""

from __future__ import annotations

from analysis.charts import Chart
from analysis.charts._parts import NAMES
from analysis.charts._profile import Profiled

_STEP = Profiled(
    noun="step",
    phase="step",
    timed="r.step_seconds AS timed_seconds, r.floor_seconds, r.floor_percentage",
    which="a few steps after the last one of the run",
    floor=(
        "each product at its own rate, causal attention at the rate of the products, and what the other "
        "parts must read and write at the memory bandwidth (model/measure/floor.py)."
    ),
    parts=tuple(NAMES),
)
chart = Chart(
    title="Where the time of a step goes",
    page="time",
    order=42,
    question="What does a training step spend its time on, and how little could it take?",
    sql=_STEP.sql,
    build=_STEP.build,
    empty="No step of this study was profiled.",
    warmup=None,
    applies=bool,
)
