"""How long a token takes to decode at each position: its query meets one key more than the one before."""

from __future__ import annotations

from analysis.charts import Chart, Figure, Row, Styles
from analysis.charts._lines import Lines, crowd, plot, table
from analysis.charts._values import fitting

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


def _build(rows: list[Row], styles: Styles) -> Figure | None:
    if not rows:
        return None
    number = fitting(",.3f", (row["value"] for row in rows))
    lines = Lines("milliseconds per decoded token", number, rows, [], [], zero=True, over="position")
    return Figure(
        spec=plot(lines, styles),
        caption=(
            "Milliseconds of a decoded position: the median over the runs of a group, and over neighbouring "
            f"positions where there are more than {_POINTS}. A token at position p attends to p + 1 keys."
            f"{crowd(lines)}"
        ),
        description="Milliseconds per decoded token over positions, a line per group; numbers are above.",
        interval="none: a trace, not an estimate",
        used=frozenset(run for row in rows for run in row["run_ids"]),
        table=table(lines, styles),
    )


chart = Chart(
    title="Decoding latency over positions",
    page="decoding",
    order=16,
    question="Does a token take longer the more tokens come before it?",
    sql=_SQL,
    build=_build,
    empty="No completed run decodes.",
    warmup=None,
    tasks=("inference",),
)
