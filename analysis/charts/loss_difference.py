"""Loss of each backend against the baseline or the others, paired by step and all else but attention."""

from __future__ import annotations

from analysis.charts import Chart, Figure, Row, Styles
from analysis.charts._curves import mean, points, smoothing
from analysis.charts._lines import StepLines, crowd_caption, line_plot, line_table
from analysis.charts._values import names, shortened
from analysis.wording import number

_SQL = f"""\
WITH declared AS (  -- the baseline of the run that was planned last; a margin only if all runs state the same
  SELECT arg_max(coalesce(design ->> '$.baseline.attention', ''), created_at) AS baseline,
    CASE WHEN count(DISTINCT coalesce(design ->> '$.margins.loss', '')) = 1
      THEN any_value(design ->> '$.margins.loss')::DOUBLE END AS margin
  FROM run_records WHERE study = $study
), {points(200, "losses > 0")}, alike AS (  -- runs that differ by attention alone read the same tokens
  SELECT run, run_id, place, dense_rank() OVER (ORDER BY other_settings)::INTEGER AS rest,
    dense_rank() OVER (ORDER BY other_settings, attention)::INTEGER AS cell,
    coalesce(attention = baseline, false) AS is_baseline
  FROM comparable JOIN known USING (run_id), declared WHERE study = $study
), traces AS (  -- only points of the same steps are compared; to group by one number is faster than by four
  SELECT run, p.place, bin, step AS last, loss, cell,
    hash(first_step, step, losses) AS span, hash(cell, span) AS key, losses
  FROM points p JOIN alike USING (run)
), backends AS (
  SELECT key, any_value(cell) AS cell, any_value(span) AS span, any_value(bin) AS bin, favg(loss) AS loss,
    count(*) AS runs
  FROM traces GROUP BY key
), cells AS (
  SELECT DISTINCT cell, rest, is_baseline FROM alike
), sorted AS (
  SELECT rest, span, list(loss ORDER BY loss) AS losses, count(*) AS backends,
    max(loss) FILTER (is_baseline) AS base,
    coalesce(max(runs) FILTER (is_baseline), max(runs)) AS runs
  FROM backends JOIN cells USING (cell) GROUP BY ALL
), sets AS (  -- without a loss above them, `low` and `high` are in the middle; without another, the next ones
  SELECT rest, span, base, backends, losses[backends // 2] AS low, losses[backends // 2 + 1] AS next_low,
    losses[(backends + 1) // 2] AS high, losses[(backends + 1) // 2 + 1] AS next_high, runs
  FROM sorted
), others AS (  -- a backend is not among those that it is compared with
  SELECT key, cell, rest, CASE
    WHEN baseline <> '' THEN CASE WHEN NOT is_baseline THEN base END
    ELSE (CASE WHEN low >= loss THEN next_low ELSE low END
      + CASE WHEN high >= loss THEN next_high ELSE high END) / 2 END AS loss, sets.runs
  FROM backends JOIN cells USING (cell) JOIN sets USING (rest, span), declared
  WHERE baseline <> '' OR backends > 2
), compared AS (
  SELECT run, place, bin, last, t.loss - o.loss AS difference, t.losses, o.runs
  FROM traces t JOIN (SELECT key, loss, runs FROM others WHERE loss IS NOT NULL) o USING (key)
), differences AS (
  SELECT place, bin, max(last) AS step, {mean("difference")} AS difference, count(*) AS n,
    max(abs(difference)) AS farthest, max(losses)::BIGINT AS records, max(runs)::BIGINT AS repeats
  FROM compared GROUP BY place, bin
), repeats AS (  -- runs of the baseline, or of each backend without one, that differ by nothing
  SELECT key, sum(t.loss) AS total, count(*) AS runs FROM traces t JOIN cells USING (cell), declared
  WHERE baseline = '' OR is_baseline GROUP BY key HAVING count(*) > 1
), own AS (  -- how far one of them goes from the mean of the others, as far as they go from the baseline
  SELECT round(max(abs(t.loss - (total - t.loss) / (runs - 1))), 9) AS noise
  FROM traces t JOIN repeats USING (key)
), members AS (
  SELECT place, list(run_id ORDER BY run_id) AS run_ids
  FROM known WHERE run IN (SELECT run FROM compared) GROUP BY place
), smoothing AS (  -- a tenth of the points
  SELECT count(DISTINCT bin) // 20 AS half FROM backends
), smoothed AS (
  SELECT place, step, n, difference, round(farthest, 9) AS farthest, records, repeats,
    2 * half + 1 AS points,
    round(avg(difference) OVER nearby, 9) AS value,
    bin = min(bin) OVER (PARTITION BY place) AS is_first
  FROM differences, smoothing
  WINDOW nearby AS (PARTITION BY place ORDER BY bin ROWS BETWEEN half PRECEDING AND half FOLLOWING)
)
SELECT label, step, n, run_ids, difference, farthest, records, repeats,
  CASE WHEN is_first THEN noise END AS noise, points, value,
  nullif(baseline, '') AS baseline, margin,
  (SELECT list(DISTINCT run_id ORDER BY run_id) FROM alike
    WHERE is_baseline AND rest IN (SELECT rest FROM others WHERE loss IS NOT NULL)
  ) AS baseline_run_ids
FROM smoothed s
JOIN (SELECT place, any_value(label) AS label FROM known GROUP BY place) g ON g.place = s.place
LEFT JOIN members m ON m.place = s.place AND is_first, declared, own  -- one list a group, on its first line
ORDER BY s.place, step"""


# Correct backends of an 8B model in bfloat16 stayed within 0.005 nats of each other over steps 801 to 1000.
_LEAST_NATS = 0.01


def _build(rows: list[Row], styles: Styles) -> Figure | None:
    if not rows:
        return None
    last = {row["label"]: row["value"] for row in rows}
    baseline, margin = rows[0]["baseline"], rows[0]["margin"]
    title = f"loss minus {baseline or 'median of the others'}, nats"
    lines = StepLines(title, "+.2~e", rows, [], [], rule=0.0, least=_LEAST_NATS, band=margin)
    band = ""
    if margin:
        band = (
            f" Shaded: the stated margin of {margin:g} nats, of the mean over the last fifth of the steps, "
            "not of single steps."
        )

    return Figure(
        spec=line_plot(lines, styles),
        caption=(
            f"Of runs that differ only in attention, at the same steps: means over runs, {smoothing(rows)}."
            f"{band} The axis spans at least {_LEAST_NATS} nats either way.{crowd_caption(lines, ' nats')}"
        ),
        description="Loss difference over steps. At the end: "
        + "; ".join(f"{label} {value:+.4f}" for label, value in last.items())
        + ".",
        interval="none drawn: the table of losses has those of the verdicts",
        used=frozenset(
            run for row in rows for run in (*(row["run_ids"] or ()), *(row["baseline_run_ids"] or ()))
        ),
        finding=_finding(rows, baseline),
        table=line_table(lines, styles),
    )


def _finding(rows: list[Row], baseline: str | None) -> str:
    """How far losses of single runs go from the reference, beside how far repeats of one backend go.

    What repeats of the reference there are is averaged at each step, and so are steps that share a point.
    """
    farthest, ends = dict[str, Row](), dict[str, int]()
    for row in rows:
        label = row["label"]
        if label not in farthest or row["farthest"] > farthest[label]["farthest"]:
            farthest[label] = row
        ends[label] = row["step"]
    worst = max(farthest.values(), key=lambda row: row["farthest"])
    short = shortened(farthest)
    repeats, records = worst["repeats"], max(row["records"] for row in rows)
    of = f" means of up to {repeats} repeats" if repeats > 1 else ""
    reference = f"the median of the others'{of}" if of else "the median of the others"
    if baseline:
        reference = f"the mean of {baseline}'s {repeats} repeats" if repeats > 1 else f"{baseline}'s"
    which = f", means of up to {records} records," if records > 1 else ""
    sentence = (
        f"Losses of single runs{which} differ by up to {number(worst['farthest'], '#.2g')} nats "
        f"from {reference} ({short[worst['label']]}, step {worst['step']:,})"
    )
    noise = max((row["noise"] for row in rows if row["noise"] is not None), default=None)
    if noise is not None:
        own = f"one of {baseline}'s repeats" if baseline else "a repeat of one backend"
        sentence += f"; {own} from the mean of its others by up to {number(noise, '#.2g')}"
    early = [short[label] for label, step in ends.items() if step < max(ends.values())]
    return f"{sentence}; stopped earlier: {names(early)}" if early else sentence


chart = Chart(
    title="Loss against the other backends",
    page="loss",
    order=11,
    question="Does any backend compute a different result?",
    sql=_SQL,
    build=_build,
    empty=(
        "It needs the declared baseline and another backend, or three backends, that logged the same steps "
        "with the same text, configuration and seed."
    ),
    warmup=False,
)
