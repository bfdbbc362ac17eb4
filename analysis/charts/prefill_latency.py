"""How long a whole prompt takes to read, for every completed run of inference."""

from __future__ import annotations

from analysis.charts import Chart, Figure, Row, Styles
from analysis.charts._dots import Axis
from analysis.charts._rates import dots
from analysis.query.rates import COMPLETED_RUNS


def _build(rows: list[Row], styles: Styles) -> Figure | None:
    if not rows:
        return None
    what = (
        "Milliseconds of a prefill: the whole prompt of each sample through the model, whose keys and values "
        "are kept, up to the logits of its last position. The median of a run's prefills after the warm-up."
    )
    return dots(rows, styles, Axis("milliseconds per prefill", ",.2f"), lambda _row, s: 1e3 * s, what)


chart = Chart(
    title="Prefill latency",
    page="prefill",
    order=14,
    question="How long does it take to read a prompt?",
    sql=COMPLETED_RUNS,
    build=_build,
    empty="No run completed with prefills after the warm-up.",
    tasks=("inference",),
)
