"""How long prompts take to read, and tokens to decode."""

from __future__ import annotations

from analysis.charts import Chart, Figure, Row, Styles
from analysis.charts._lines import StepLines, crowd_caption, line_plot, line_table
from analysis.charts._rows import DotAxis, rate_figure
from analysis.charts._values import Ends, fitting, names, shortened
from analysis.query.statements import COMPLETED_RUNS, DECODED_RUNS
from analysis.stats import by_label
from analysis.stats.estimate import median
from analysis.wording import number


def _prefill(rows: list[Row], styles: Styles) -> Figure | None:
    if not rows:
        return None
    what = "From the prompts to the logits of their last positions: the median of a run's prefills."
    ends = Ends("time per prefill", " ms", "shortest", "longest", high_first=False)
    axis = DotAxis("milliseconds per prefill", ",.2f", ends, reported="prefill_milliseconds")
    return rate_figure(rows, styles, axis, lambda _row, s: 1e3 * s, what)


def _decode(rows: list[Row], styles: Styles) -> Figure | None:
    if not rows:
        return None
    batches = ", ".join(f"{size:,}" for size in sorted({row["batch_size"] for row in rows}))
    what = f"One token of each sample (batch {batches}), with a cache: the median of a run's positions."
    eager = list(dict.fromkeys(row["label"] for row in rows if not row["graphs"]))
    if len(eager) < len({row["label"] for row in rows}):
        what += f" In CUDA graphs{', but ' + names(eager) if eager else ''}."
    if eager:
        what += " Blocks run eagerly: launches can take longer than kernels."
    ends = Ends("time per decoded token", " ms", "shortest", "longest", high_first=False)
    axis = DotAxis("milliseconds per decoded token", ",.3f", ends, reported="decode_milliseconds")
    return rate_figure(rows, styles, axis, lambda _row, s: 1e3 * s, what)


_POINTS = 200
_SQL = f"""\
WITH mine AS (
  SELECT r.label, r.place, r.run_id, r.gpus, d.position, 1e3 * d.seconds AS milliseconds
  FROM runs r JOIN decoding d ON d.study = r.study AND d.run_id = r.run_id AND d.attempt = r.deciding_attempt
  WHERE r.study = $study AND r.outcome = 'completed'
), size AS (
  SELECT min(position) AS first,
    greatest(1, ceil((max(position) - min(position) + 1) / {_POINTS}.0))::BIGINT AS width
  FROM mine
)
SELECT label, max(position) AS step, round(median(milliseconds), 6) AS value, count(*) AS n,
  max(gpus) AS gpus, list(DISTINCT run_id ORDER BY run_id) AS run_ids
FROM mine, size
GROUP BY label, place, (position - first) // width
ORDER BY place, step"""


def _positions(rows: list[Row], styles: Styles) -> Figure | None:
    if not rows:
        return None
    form = fitting(",.3f", (row["value"] for row in rows))
    # Nothing runs before it that would hide how long the host takes to launch it.
    first = " The first one waits for the host, too." if any(row["gpus"] for row in rows) else ""
    lines = StepLines("milliseconds per decoded token", form, rows, [], [], zero=True, over="position")
    return Figure(
        spec=line_plot(lines, styles),
        caption=(
            f"Medians over a group's runs, at most {_POINTS} points a line. A token at position p attends to "
            f"p + 1 keys.{first}{crowd_caption(lines, ' ms')}"
        ),
        description="Milliseconds per decoded token over positions, a line per group; numbers are above.",
        interval="none: a trace, not an estimate",
        used=frozenset(run for row in rows for run in row["run_ids"]),
        finding=_over_positions(rows),
        table=line_table(lines, styles),
    )


def _over_positions(rows: list[Row]) -> str | None:
    """How much longer a token takes at the end than at the start: medians of the last and the first tenth."""
    changes = {}
    for label, own in by_label(rows).items():
        part = len(own) // 10
        if part:
            first, last = (median([row["value"] for row in rows_]) for rows_ in (own[:part], own[-part:]))
            changes[label] = 100 * (last / first - 1)
    if not changes:
        return None
    short = shortened(changes)
    low, high = (end(changes, key=lambda label: changes[label]) for end in (min, max))
    texts = [f"{number(changes[label], '+,.1f')} % ({names([short[label]])})" for label in (low, high)]
    return (
        f"Time per token, last tenth of the positions against the first: {' to '.join(dict.fromkeys(texts))}"
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
