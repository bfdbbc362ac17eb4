"""Training loss over steps: every run's trace under its group's smoothed mean."""

from __future__ import annotations

from analysis.charts import Chart, Figure, Row, Styles
from analysis.charts._curves import limit, mean, points, smoothing
from analysis.charts._lines import StepLines, crowd_caption, line_plot, line_table
from analysis.charts._values import in_all, names

_SQL = f"""\
WITH {points(200)}, traces AS (  -- unknown if one of the losses is not finite
  SELECT run, place, bin, step, CASE WHEN losses = records THEN round(loss, 9) END AS loss FROM points
), ends AS (
  SELECT run, max(step) FILTER (loss IS NOT NULL) AS step,
    arg_max(loss, step) FILTER (loss IS NOT NULL) AS loss
  FROM traces GROUP BY run
), sizes AS (
  SELECT place, any_value(label) AS label, count(*) AS runs FROM ends JOIN known USING (run) GROUP BY place
), groups AS (  -- only where every run of the group has a loss
  SELECT place, bin, max(step) AS step, {mean("loss")} AS loss, count(*) AS n, count(loss) AS known
  FROM traces GROUP BY place, bin
), smoothing AS (  -- a twentieth of the points
  SELECT count(DISTINCT bin) // 40 AS half FROM groups
), drawn AS (  -- the traces of at most 100 runs: the first of each group, the second of each, and so on
  SELECT run FROM (
    SELECT run, label, row_number() OVER (PARTITION BY place ORDER BY seed, run_id) AS turn
    FROM ends JOIN known USING (run))
  ORDER BY turn, label LIMIT 100
)
SELECT 'run' AS kind, label, run_id, seed, outcome, step, loss AS value, 1 AS n, 1 AS points
FROM traces JOIN known USING (run) WHERE run IN (FROM drawn)
UNION ALL  -- of the other runs, where they ended
SELECT 'end', label, run_id, seed, outcome, step, loss, 1, 1 FROM ends JOIN known USING (run)
WHERE run NOT IN (FROM drawn)
UNION ALL
SELECT 'group', label, NULL, NULL, NULL, step,
  round(avg(loss) OVER (PARTITION BY place ORDER BY bin ROWS BETWEEN half PRECEDING AND half FOLLOWING), 9),
  n, 2 * half + 1
FROM groups JOIN sizes USING (place), smoothing WHERE groups.known = runs
ORDER BY kind, label, run_id, step"""


def _build(rows: list[Row], styles: Styles) -> Figure | None:
    traces = [row for row in rows if row["kind"] != "group"]
    drawn = [row for row in traces if row["kind"] == "run"]
    groups = [row for row in rows if row["kind"] == "group"]
    if not any(row["value"] is not None for row in groups):
        return None
    ended = [row for row in traces if row["value"] is not None and row["outcome"] not in ("completed", None)]
    ends = list({row["run_id"]: row for row in ended}.values())  # rows come in step order: the last stays
    lines = StepLines("training loss, nats per token", ".4f", groups, drawn, ends)

    used = frozenset(row["run_id"] for row in traces)
    runs, shown = len(used), len({row["run_id"] for row in drawn})
    faint = "each run"
    if lines.crowded:
        shown = len({row["run_id"] for row in drawn if row["label"] in lines.named})
        faint = f"{shown:,} of the {runs:,} runs, of the named groups (the other lines are of all {runs:,})"
    elif shown < runs:
        which = "as many of each group as fit"
        faint = f"{shown:,} of the {runs:,} runs, {which} (the solid lines are of all {runs:,})"
    cross = " A cross marks the end of a run that did not complete." if ends else ""
    seeds: dict[str, set[int | None]] = {}
    for row in traces:
        seeds.setdefault(row["label"], set()).add(row["seed"])
    caution = ""
    if len({frozenset(seeds_of_group) for seeds_of_group in seeds.values()}) > 1:
        caution = (
            " The groups have different seeds, and each seed reads the text in a different order, which "
            "alone can separate two lines. The next figure compares runs with the same seed."
        )

    # How far apart the lines that reach the last step end, and which runs stopped before.
    last_step = max(row["step"] for row in lines.last.values())
    final = {label: row["value"] for label, row in lines.last.items() if row["step"] == last_step}
    low, high = (end(final, key=lambda label: final[label]) for end in (min, max))
    lowest, highest = (f"{final[label]:.4f}" for label in (low, high))
    finding = f"At step {last_step:,} the mean losses are {lowest} ({low}) to {highest} nats ({high})"
    if lowest == highest:
        where = f"in {in_all(len(final))}" if len(final) > 1 else f"({low})"
        finding = f"At step {last_step:,} the mean loss is {lowest} nats {where}"
    if early := list(dict.fromkeys(f"{row['label']} ({row['outcome']})" for row in ends)):
        finding += f"; stopped earlier: {names(early)}"
    return Figure(
        spec=line_plot(lines, styles),
        caption=(
            f"Cross-entropy of the training batch. Faint: {faint}, at most {limit(200, groups, runs)} "
            "points, each the mean of the steps logged since the one before. Solid: the mean over a group's "
            f"runs, {smoothing(groups)}, only where all of them have a finite loss. Points are joined "
            f"because training is one sequence.{crowd_caption(lines)}{cross}{caution}"
        ),
        description="Training loss over steps. Last loss of the solid line: "
        + "; ".join(f"{label} {row['value']:.4f}" for label, row in lines.last.items())
        + ".",
        interval="none: traces, not estimates",
        used=used,
        finding=finding,
        table=line_table(lines, styles),
    )


chart = Chart(
    title="Training loss",
    page="loss",
    order=10,
    question="Do all groups follow the same loss curve?",
    sql=_SQL,
    build=_build,
    empty="No run logged a finite loss.",
    warmup=False,
)
