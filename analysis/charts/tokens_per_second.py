"""Throughput of every completed run."""

from __future__ import annotations

from analysis.charts import Chart, Figure, Row, Styles
from analysis.charts._dots import Axis
from analysis.charts._rates import dots
from analysis.query.rates import COMPLETED_RUNS
from analysis.stats import rate


def _build(rows: list[Row], styles: Styles) -> Figure | None:
    if not rows:
        return None
    what = "Tokens per second, including padding: tokens per step divided by the median seconds per step."
    if rows[0]["task"] == "inference":
        what = "Tokens of prompts per second: the tokens of a prefill divided by its median seconds."
    axis = Axis("tokens per second", ",.0f")
    return dots(rows, styles, axis, rate("tokens_per_second"), what)


chart = Chart(
    title="Tokens per second",
    page="tokens",
    order=20,
    question="How many tokens does each group process per second?",
    sql=COMPLETED_RUNS,
    build=_build,
    empty="No run completed with step records after the warm-up.",
    tasks=("training", "inference"),
)
