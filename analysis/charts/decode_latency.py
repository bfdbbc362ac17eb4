"""How long a token takes to decode, for every completed run of inference."""

from __future__ import annotations

from analysis.charts import Chart, Figure, Row, Styles
from analysis.charts._dots import Axis
from analysis.charts._rates import dots
from analysis.query.rates import DECODED_RUNS


def _build(rows: list[Row], styles: Styles) -> Figure | None:
    if not rows:
        return None
    batches = ", ".join(f"{size:,}" for size in sorted({row["batch_size"] for row in rows}))
    what = (
        f"Milliseconds of a decoded position: one token of each sample (batch {batches}) through the model, "
        "with a cache of the keys and values before it. The median over a run's positions, in the second of "
        "two passes. Blocks run eagerly: on a GPU, launches by the host may take longer than kernels."
    )
    return dots(rows, styles, Axis("milliseconds per decoded token", ",.3f"), lambda _row, s: 1e3 * s, what)


chart = Chart(
    title="Decoding latency",
    page="decoding",
    order=15,
    question="How long does it take to decode a token after a prompt?",
    sql=DECODED_RUNS,
    build=_build,
    empty="No completed run decodes: `inference.new_tokens` is 0, or the backends cannot.",
    warmup=None,
    tasks=("inference",),
)
