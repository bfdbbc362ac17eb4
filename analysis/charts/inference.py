"""How long prompts take to read, and tokens to decode."""

from __future__ import annotations

from analysis.charts import Chart, Figure, Row, Styles
from analysis.charts._lines import StepLines, crowd_caption, line_plot, line_table
from analysis.charts._rows import DotAxis, rate_figure
from analysis.charts._values import fitting
from analysis.query.statements import COMPLETED_RUNS, DECODED_RUNS


def _prefill(rows: list[Row], styles: Styles) -> Figure | None:
    if not rows:
        return None
    what = (
        "Milliseconds of a prefill: the whole prompt of each sample through the model, whose keys and values "
        "are kept, up to the logits of its last position. The median of a run's prefills after the warm-up."
    )
    return rate_figure(
        rows, styles, DotAxis("milliseconds per prefill", ",.2f"), lambda _row, s: 1e3 * s, what
    )


def _decode(rows: list[Row], styles: Styles) -> Figure | None:
    if not rows:
        return None
    batches = ", ".join(f"{size:,}" for size in sorted({row["batch_size"] for row in rows}))
    what = (
        f"Milliseconds of a decoded position: one token of each sample (batch {batches}) through the model, "
        "with a cache of the keys and values before it. The median over a run's positions, in the second of "
        "two passes. Blocks run eagerly: on a GPU, launches by the host may take longer than kernels."
    )
    return rate_figure(
        rows, styles, DotAxis("milliseconds per decoded token", ",.3f"), lambda _row, s: 1e3 * s, what
    )


_POINTS = 200
_SQL = f"""\
WITH mine AS (
  SELECT r.label, r.place, r.run_id, d.position, 1e3 * d.seconds AS milliseconds
  FROM runs r JOIN decoding d ON d.study = r.study AND d.run_id = r.run_id AND d.attempt = r.deciding_attempt
  WHERE r.study = $study AND r.outcome = 'completed'
), size AS (
  SELECT min(position) AS first,
    greatest(1, ceil((max(position) - min(position) + 1) / {_POINTS}.0))::BIGINT AS width
  FROM mine
)
SELECT label, max(position) AS step, round(median(milliseconds), 6) AS value, count(*) AS n,
  list(DISTINCT run_id ORDER BY run_id) AS run_ids
FROM mine, size
GROUP BY label, place, (position - first) // width
ORDER BY place, step"""


def _positions(rows: list[Row], styles: Styles) -> Figure | None:
    if not rows:
        return None
    number = fitting(",.3f", (row["value"] for row in rows))
    lines = StepLines("milliseconds per decoded token", number, rows, [], [], zero=True, over="position")
    return Figure(
        spec=line_plot(lines, styles),
        caption=(
            "Milliseconds of a decoded position: the median over the runs of a group, and over neighbouring "
            f"positions where there are more than {_POINTS}. A token at position p attends to p + 1 keys."
            f"{crowd_caption(lines)}"
        ),
        description="Milliseconds per decoded token over positions, a line per group; numbers are above.",
        interval="none: a trace, not an estimate",
        used=frozenset(run for row in rows for run in row["run_ids"]),
        table=line_table(lines, styles),
    )


charts = {
    "prefill_latency": Chart(
        title="Prefill latency",
        page="prefill",
        order=14,
        question="How long does it take to read a prompt?",
        sql=COMPLETED_RUNS,
        build=_prefill,
        empty="No run completed with prefills after the warm-up.",
        tasks=("inference",),
    ),
    "decode_latency": Chart(
        title="Decoding latency",
        page="decoding",
        order=15,
        question="How long does it take to decode a token after a prompt?",
        sql=DECODED_RUNS,
        build=_decode,
        empty="No completed run decodes: `inference.new_tokens` is 0, or the backends cannot.",
        warmup=None,
        tasks=("inference",),
    ),
    "decode_positions": Chart(
        title="Decoding latency over positions",
        page="decoding",
        order=16,
        question="Does a token take longer the more tokens come before it?",
        sql=_SQL,
        build=_positions,
        empty="No completed run decodes.",
        warmup=None,
        tasks=("inference",),
    ),
}
