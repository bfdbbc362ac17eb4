"""Where the time of a decoded token goes."""

from __future__ import annotations

from analysis.charts import Chart
from analysis.charts._parts import FORWARD
from analysis.charts._profile import Profiled

_TOKEN = Profiled(
    noun="decoded token",
    phase="decode",
    timed=(
        "r.decode_seconds AS timed_seconds, r.decode_floor_seconds AS floor_seconds, "
        "r.decode_floor_percentage AS floor_percentage"
    ),
    which="a few more tokens at the median position, after the run",
    floor=(
        "all weights of the products, and the keys and values of the cache, read once at the memory "
        "bandwidth, or the products at their rates where that takes longer "
        "(model/measure/floor_inference.py). What fits into caches can be read faster."
    ),
    parts=FORWARD,
)
chart = Chart(
    title="Where the time of a decoded token goes",
    page="decoding",
    order=16,
    question="What does a decoded token spend its time on, and how little could it take?",
    sql=_TOKEN.sql,
    build=_TOKEN.build,
    empty="No decoded token of this study was profiled.",
    warmup=None,
    applies=bool,
    tasks=("inference",),
)
