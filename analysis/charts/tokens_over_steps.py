"""Throughput while the runs train, with the warm-up marked."""

from __future__ import annotations

from analysis.charts import Chart, Figure, Row, Styles
from analysis.charts._curves import limit, points
from analysis.charts._lines import StepLines, crowd_caption, line_plot, line_table
from analysis.charts._values import brief, fitting
from analysis.stats import by_label
from analysis.stats.estimate import median

_SQL = f"""\
WITH {points(100, "tokens > 0")}, lines AS (
  SELECT place, bin, max(step) AS step, round(sum(tokens) / fsum(seconds), 6) AS value, count(*) AS n,
    bin = min(bin) OVER (PARTITION BY place) AS is_first
  FROM points GROUP BY place, bin HAVING sum(seconds) > 0
), groups AS (
  SELECT place, any_value(label) AS label, list(run_id ORDER BY run_id) AS run_ids,
    max(warmup_steps) AS warmup_steps
  FROM known WHERE run IN (SELECT run FROM points WHERE seconds > 0) GROUP BY place
)
SELECT label, step, value, n, run_ids, warmup_steps
FROM lines JOIN (SELECT * EXCLUDE (run_ids) FROM groups) USING (place)
LEFT JOIN (SELECT place, run_ids FROM groups) m ON m.place = lines.place AND is_first  -- once a group
ORDER BY label, step"""


def _build(rows: list[Row], styles: Styles) -> Figure | None:
    if not rows:
        return None
    used = frozenset(run for row in rows for run in row["run_ids"] or ())
    warmup = max(row["warmup_steps"] for row in rows)
    number = fitting(",.0f", (row["value"] for row in rows))

    # How far a rate goes from its group's median after the warm-up.
    off = {}
    for label, label_rows in by_label(row for row in rows if row["step"] > warmup).items():
        middle = median([row["value"] for row in label_rows])
        off[label] = max(abs(row["value"] / middle - 1) for row in label_rows)
    finding = None
    if off:
        worst = max(off, key=lambda label: off[label])
        reach = f"{brief(100 * off[worst])} % of its group's median"
        finding = f"Observed: after the warm-up every point is within {reach} (farthest: {worst})"
    lines = StepLines("tokens per second", number, rows, [], [], warmup_steps=warmup, zero=True)
    return Figure(
        spec=line_plot(lines, styles),
        caption=(
            f"Tokens divided by seconds of the steps up to each point, at most {limit(100, rows, len(used))} "
            f"points per group, all of its runs together. The warm-up (shaded, up to step {warmup}) is shown "
            f"here but counts nowhere else.{crowd_caption(lines)}"
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
