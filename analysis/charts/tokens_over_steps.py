"""Throughput while the runs train, with the warm-up marked."""

from __future__ import annotations

from analysis.charts import Chart, Figure, Row, Styles
from analysis.charts._curves import limit, points
from analysis.charts._lines import StepLines, crowd_caption, line_plot, line_table
from analysis.charts._values import brief, fitting, shortened

_SQL = f"""\
WITH {points(100, "tokens > 0")}, lines AS (
  SELECT place, bin, max(step) AS step, round(sum(tokens) / fsum(seconds), 6) AS value, count(*) AS n,
    bin = min(bin) OVER (PARTITION BY place) AS is_first
  FROM points GROUP BY place, bin HAVING sum(seconds) > 0
), groups AS (
  SELECT place, any_value(label) AS label, list(k.run_id ORDER BY k.run_id) AS run_ids,
    max(k.warmup_steps) AS warmup_steps,
    -- How far the middle half of a run's counted records goes from its median.
    round(max(greatest(m.step_seconds / m.step_seconds_25, m.step_seconds_75 / m.step_seconds) - 1), 9)
      AS half
  FROM known k LEFT JOIN run_measures m ON m.study = $study AND m.run_id = k.run_id
  WHERE run IN (SELECT run FROM points WHERE seconds > 0) GROUP BY place
)
SELECT label, step, value, n, run_ids, warmup_steps, half
FROM lines JOIN (SELECT * EXCLUDE (run_ids, half) FROM groups) USING (place)
LEFT JOIN (SELECT place, run_ids, half FROM groups) m ON m.place = lines.place AND is_first  -- once a group
ORDER BY label, step"""


def _build(rows: list[Row], styles: Styles) -> Figure | None:
    if not rows:
        return None
    used = frozenset(run for row in rows for run in row["run_ids"] or ())
    warmup = max(row["warmup_steps"] for row in rows)
    number = fitting(",.0f", (row["value"] for row in rows))

    # How far half of the records go from their run's median: a single slow one says little.
    off = {row["label"]: row["half"] for row in rows if row["half"] is not None}
    finding = None
    if off:
        widest = max(off, key=lambda label: off[label])
        reach = f"{brief(100 * off[widest])} % of its median rate"
        where = f" (widest: {shortened(off)[widest]})" if len(off) > 1 else ""
        finding = f"The middle half of each run's counted steps is within {reach}{where}"
    lines = StepLines("tokens per second", number, rows, [], [], warmup_steps=warmup, zero=True)
    return Figure(
        spec=line_plot(lines, styles),
        caption=(
            f"Of the steps up to each of at most {limit(100, rows, len(used))} points, a group's runs "
            f"together. Counted nowhere else: the warm-up (shaded, to step {warmup}), the first step of a "
            f"later attempt.{crowd_caption(lines, ' tokens/s')}"
        ),
        description="Tokens per second over steps, one line per group. The figure above has the numbers.",
        interval="none: a trace, not an estimate",
        used=used,
        finding=finding,
        table=line_table(lines, styles),
    )


chart = Chart(
    title="Tokens per second over the run",
    page="tokens",
    order=21,
    question="Does throughput stay steady during a run?",
    sql=_SQL,
    build=_build,
    empty="No run has step records.",
    warmup=False,
    tasks=("training", "inference"),
)
