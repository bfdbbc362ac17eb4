"""Throughput over the baseline's at the same steps: tells lines apart that hide each other."""

from __future__ import annotations

from analysis.charts import Chart, Figure, Row, Styles
from analysis.charts._curves import limit, points
from analysis.charts._lines import StepLines, crowd_caption, line_plot, line_table
from analysis.charts._values import names, shortened
from analysis.stats import by_label
from analysis.verdicts.groups import compared, declared, groups_of

# What all points of a group share comes with its first: the runs, the factors and the design.
_SQL = f"""\
WITH {points(100, "tokens > 0")},
uncounted AS (  -- after the warm-up: where an attempt resumed, or of other processes
  SELECT run_id, step FROM steps JOIN known k USING (run_id)
  WHERE study = $study AND NOT counted AND step - steps >= k.warmup_steps
), left_out AS (
  SELECT DISTINCT p.place, bin FROM points p JOIN known k USING (run) JOIN uncounted u USING (run_id)
  WHERE u.step BETWEEN p.first_step AND p.step
), rates AS (
  SELECT place, bin, min(first_step) AS first_step, max(step) AS step,
    round(sum(tokens) / fsum(seconds), 6) AS rate, row_number() OVER (PARTITION BY place ORDER BY bin) AS turn
  FROM points ANTI JOIN left_out USING (place, bin) GROUP BY place, bin HAVING sum(seconds) > 0
), groups AS (
  SELECT r.label, r.place, list(run_id ORDER BY run_id) AS run_ids, max(r.warmup_steps) AS warmup_steps,
    min(r.scale) AS scale, max(r.created_at) AS created_at,
    first(r.factors ORDER BY r.created_at DESC, run_id) AS factors,
    first(r.design ORDER BY r.created_at DESC, run_id) AS design
  FROM runs r JOIN known k USING (run_id)
  WHERE r.study = $study AND k.run IN (SELECT run FROM points WHERE seconds > 0) GROUP BY r.label, r.place
)
SELECT label, place, first_step, step, rate, warmup_steps, scale, created_at,
  CASE WHEN turn = 1 THEN run_ids END AS run_ids, CASE WHEN turn = 1 THEN factors END AS factors,
  CASE WHEN turn = 1 THEN design END AS design
FROM rates JOIN groups USING (place) ORDER BY place, step"""
_MOST = 0.85  # of the points on one side, from which a title has a line there
_LEAST = 0.01  # how far the axis reaches at least on either side of 1, so that rounding looks small


def _build(rows: list[Row], styles: Styles) -> Figure | None:
    groups = by_label(rows)
    heads = [group[0] for group in groups.values()]
    pairs = [(a.label, b.label) for a, b in compared(groups_of(heads), declared(heads))]
    drawn: list[Row] = []  # the ratio at each of the bins that both have, after the warm-up
    for label, base in pairs:
        rates = {(row["first_step"], row["step"]): row["rate"] for row in groups[base]}
        for row in groups[label]:
            base_rate = rates.get((row["first_step"], row["step"]))
            if base_rate is not None and row["first_step"] > row["warmup_steps"]:
                drawn.append({"label": label, "step": row["step"], "value": row["rate"] / base_rate})
    if not drawn:
        return None
    kept = {row["label"] for row in drawn}
    over = list(dict.fromkeys(base for label, base in pairs if label in kept))
    used = frozenset(run for label in (*kept, *over) for run in groups[label][0]["run_ids"])
    title = f"rate over that of {over[0] if len(over) == 1 else 'the baseline'}"

    # Which lines stay on one side of 1.
    short = shortened(groups)
    sides: dict[str, list[str]] = {}
    for label, line in by_label(drawn).items():
        values = [row["value"] for row in line]
        above, below = (sum(sign * value > sign for value in values) / len(values) for sign in (1, -1))
        word = "faster" if above > below else "slower"
        how = "throughout" if max(above, below) == 1 else "at most points"
        side = f"{word} {how}" if max(above, below) >= _MOST else "faster and slower in turn"
        sides.setdefault("as fast" if above == below == 0 else side, []).append(short[label])
    order = (
        *(f"{word} {how}" for how in ("throughout", "at most points") for word in ("faster", "slower")),
        "faster and slower in turn",
        "as fast",
    )
    clauses = [f"{side}: {names(sides[side])}" for side in order if side in sides]
    base = short[over[0]] if len(over) == 1 else "the baseline"
    lines = StepLines(title, ".3f", drawn, [], [], rule=1.0, least=_LEAST)
    return Figure(
        spec=line_plot(lines, styles),
        caption=(
            f"At the same steps that count as {names(over)}, at most {limit(100, rows, len(used))} points, a "
            f"group's runs together. The axis spans at least {_LEAST:g} either way.{crowd_caption(lines)}"
        ),
        description=f"{title} over steps. At the end: "
        + "; ".join(f"{label} {row['value']:.3f}" for label, row in lines.last.items())
        + ".",
        interval="none: a trace; the comparison has the intervals and verdicts",
        used=used,
        finding=f"Against {base}, {'; '.join(clauses)}",
        table=line_table(lines, styles),
    )


chart = Chart(
    title="Tokens per second against the baseline",
    page="tokens",
    order=22,
    question="Is a group faster or slower than the baseline throughout the run?",
    sql=_SQL,
    build=_build,
    empty="It needs a declared baseline and another group that logged the same steps.",
    tasks=("training", "inference"),
)
