"""Training loss over steps: every run's trace under its group's smoothed mean, and the final losses."""

from __future__ import annotations

from collections.abc import Mapping

from analysis.charts import Chart, Figure, Row, Styles
from analysis.charts._curves import limit, mean, points, smoothing
from analysis.charts._lines import StepLines, crowd_caption, line_plot, line_table
from analysis.charts._reported import hollow_caption, hollow_description, mark_rows, marks_of
from analysis.charts._values import in_a_headline, in_all, in_single_runs, names, shortened
from analysis.stats import Estimate, by_label, grouped
from analysis.verdicts.groups import final_loss

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
SELECT 'run' AS kind, label, run_id, seed, outcome, step, loss AS value, 1 AS n, 1 AS points,
  NULL AS tokens_per_step
FROM traces JOIN known USING (run) WHERE run IN (FROM drawn)
UNION ALL  -- of the other runs, where they ended
SELECT 'end', label, run_id, seed, outcome, step, loss, 1, 1, NULL FROM ends JOIN known USING (run)
WHERE run NOT IN (FROM drawn)
UNION ALL
SELECT 'group', label, NULL, NULL, NULL, step,
  round(avg(loss) OVER (PARTITION BY place ORDER BY bin ROWS BETWEEN half PRECEDING AND half FOLLOWING), 9),
  n, 2 * half + 1, NULL
FROM groups JOIN sizes USING (place), smoothing WHERE groups.known = runs
UNION ALL  -- as logged, of the last step
SELECT 'final', label, run_id, seed, outcome, steps, final_loss, 1, 1, round(r.tokens_per_step)::BIGINT
FROM runs r WHERE study = $study AND outcome = 'completed' AND final_loss IS NOT NULL
ORDER BY kind, label, run_id, step"""


def _build(rows: list[Row], styles: Styles) -> Figure | None:
    traces = [row for row in rows if row["kind"] in ("run", "end")]
    drawn = [row for row in traces if row["kind"] == "run"]
    groups = [row for row in rows if row["kind"] == "group"]
    if not any(row["value"] is not None for row in groups):
        return None
    ended = [row for row in traces if row["value"] is not None and row["outcome"] not in ("completed", None)]
    ends = list({row["run_id"]: row for row in ended}.values())  # rows come in step order: the last stays
    finals = [row for row in rows if row["kind"] == "final"]
    marks, last = marks_of(finals, "final_loss"), {row["label"]: row["step"] for row in finals}
    theirs = tuple(row | {"step": last[row["label"]]} for row in mark_rows(marks))
    lines = StepLines("training loss, nats per token", ".4f", groups, drawn, ends, theirs=theirs)

    used = frozenset(row["run_id"] for row in traces)
    runs, shown = len(used), len({row["run_id"] for row in drawn})
    faint = "each run"
    if lines.crowded:
        shown = len({row["run_id"] for row in drawn if row["label"] in lines.named})
        faint = f"{shown:,} of the {runs:,} runs, of the named groups (the other lines are of all {runs:,})"
    elif shown < runs:
        which = "as many of each group as fit"
        faint = f"{shown:,} of the {runs:,} runs, {which} (the solid lines are of all {runs:,})"
    cross = " Crosses: ends of runs that did not complete." if ends else ""
    smoothed = smoothing(groups)
    if groups[0]["points"] > 1:
        smoothed += "; final losses are not"
    seeds: dict[str, set[int | None]] = {}
    for row in traces:
        seeds.setdefault(row["label"], set()).add(row["seed"])
    caution = ""
    if len({frozenset(seeds_of_group) for seeds_of_group in seeds.values()}) > 1:
        caution = (
            " The groups have different seeds, and so different orders of the text: that alone can separate "
            "lines."
        )

    return Figure(
        spec=line_plot(lines, styles),
        caption=(
            f"Faint: {faint}, means of the steps up to each of at most {limit(200, groups, runs)} points. "
            f"Solid: means over a group's runs, {smoothed}.{crowd_caption(lines, ' nats')}{cross}{caution}"
            f"{hollow_caption(marks)}"
        ),
        description="Training loss over steps. Last loss of the solid line: "
        + "; ".join(f"{label} {row['value']:.4f}" for label, row in lines.last.items())
        + f".{hollow_description(marks)}",
        interval="none: traces, not estimates",
        used=used,
        finding=_finding(finals, ends),
        table=line_table(lines, styles),
    )


def _finding(finals: list[Row], ends: list[Row]) -> str:
    """The final losses, apart where steps have different numbers of tokens, and which runs stopped before."""
    clauses, seeds, groups = list[str](), 0, 0
    by_tokens = grouped(finals, lambda row: row["tokens_per_step"])
    for tokens, rows in sorted(by_tokens.items(), key=lambda one: -len(one[1])):
        logged = by_label({**row, "final_loss": row["value"]} for row in rows)
        losses = {label: loss for label, runs in logged.items() if (loss := final_loss(runs))}
        estimates = {label: loss.telling for label, loss in losses.items()}
        seeds, groups = max(seeds, *(loss.n for loss in losses.values())), groups + len(losses)
        runs = {label: len(own) for label, own in logged.items()}
        text = _range(estimates, runs)
        if len(by_tokens) > 1:
            text += f", at {tokens:,} tokens a step" if tokens else ", at unknown tokens a step"
        clauses.append(text)
    how = ", median over seeds" if seeds > 1 else ", mean of repeats" if len(finals) > groups else ""
    sentence = f"Final loss{how}: {'; '.join(clauses)}" if clauses else "No run completed with a finite loss"
    stopped = list(dict.fromkeys(f"{row['label']} ({row['outcome']})" for row in ends))
    return f"{sentence}; stopped earlier: {names(stopped)}" if stopped else sentence


def _range(estimates: Mapping[str, Estimate], runs: Mapping[str, int]) -> str:
    """The smallest and the largest loss with their groups: `1.2523 (flash) to 1.2746 nats (custom)`.

    Args:
        runs: how many runs each is of.
    """
    short = shortened(estimates)
    low, high = (end(estimates, key=lambda label: estimates[label].median) for end in (min, max))
    first, last = (in_a_headline(estimates[label], ".4f", 5) for label in (low, high))
    single = in_single_runs({label: runs[label] for label in (low, high)})
    if len(estimates) == 1:
        return f"{first} nats ({short[low]}){single}"
    if first == last:
        return f"{first} nats in {in_all(len(estimates))}{single}"
    return f"{first} ({short[low]}) to {last} nats ({short[high]}){single}"


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
