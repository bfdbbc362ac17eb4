"""Loss of each backend against the median backend, paired by step, seed and everything else but attention."""

from __future__ import annotations

from analysis.charts import Chart, Figure, Row, Styles
from analysis.charts._lines import BIN, Lines, plot, smoothing

_SQL = f"""\
WITH alike AS (  -- runs that differ by attention alone saw the same tokens at the same step
  SELECT run_id, dense_rank() OVER (
    ORDER BY json_merge_patch(config, '{{"attention": null}}')::VARCHAR, data_fingerprint) AS rest
  FROM run_records WHERE study = $study
), logged AS (
  SELECT r.label, r.run_id, r.attention, s.step, s.loss, a.rest, {BIN.replace("$most", "200")} AS bin
  FROM runs r JOIN steps s ON s.study = r.study AND s.run_id = r.run_id JOIN alike a ON a.run_id = r.run_id
  WHERE r.study = $study AND s.loss IS NOT NULL
), paired AS (
  SELECT *, loss - median(loss) OVER pair AS difference, count(*) OVER pair AS backends
  FROM logged WINDOW pair AS (PARTITION BY rest, step)
), binned AS (
  SELECT label, bin, max(step) AS step, round(avg(difference), 9) AS difference, count(DISTINCT run_id) AS n,
    list(DISTINCT run_id ORDER BY run_id) AS run_ids,
    (SELECT count(DISTINCT bin) // 20 FROM logged) AS half  -- a window of a tenth of the points
  FROM paired WHERE backends >= 3 GROUP BY label, bin
)
SELECT label, step, n, run_ids, difference, 2 * half + 1 AS points,
  round(avg(difference) OVER nearby, 9) AS value
FROM binned
WINDOW nearby AS (PARTITION BY label ORDER BY bin ROWS BETWEEN half PRECEDING AND half FOLLOWING)
ORDER BY label, step"""


# Correct backends of an 8B model in bfloat16 stayed within 0.005 nats of each other over steps 801 to 1000.
_LEAST_NATS = 0.01


def _build(rows: list[Row], styles: Styles) -> Figure | None:
    if not rows:
        return None
    last = {row["label"]: row["value"] for row in rows}
    lines = Lines("loss minus median backend, nats", "+.2~e", rows, [], [], rule=0.0, least=_LEAST_NATS)
    return Figure(
        spec=plot(lines, styles),
        caption=(
            "Loss minus the median over backends at the same step, for runs that differ only in attention "
            f"and so read the same tokens; averaged over seeds, {smoothing(rows)}. The axis spans at least "
            f"{_LEAST_NATS} nats either way. Exact attention is one function: the lines of backends that "
            "compute it differ only by rounding and nondeterminism, and a line far outside the others' band "
            "computes something else. How far is too far is not tested here."
        ),
        description="Loss difference over steps. At the end: "
        + "; ".join(f"{label} {value:+.4f}" for label, value in last.items())
        + ".",
        interval="none shown",
        used=frozenset(run for row in rows for run in row["run_ids"]),
    )


chart = Chart(
    title="Loss against the median backend",
    page="loss",
    order=11,
    question="Does any backend compute a different result?",
    sql=_SQL,
    build=_build,
    empty="It needs three or more backends that logged the same steps of the same configuration and seed.",
    warmup=False,
)
