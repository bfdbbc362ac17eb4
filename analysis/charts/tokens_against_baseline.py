"""Throughput over the baseline's at the same steps: tells lines apart that hide each other."""

from __future__ import annotations

from typing import Any

from analysis.charts import Chart, Figure, Row, Styles
from analysis.charts._curves import limit, points
from analysis.charts._lines import Lines, plot, table
from analysis.charts._values import names
from analysis.findings.groups import compared, declared, groups_of
from analysis.stats import by_label

# The factors and the design come once a group, with its first point.
_SQL = f"""\
WITH {points(100, "tokens > 0")}, traces AS (
  SELECT run_id, bin, min(first_step) AS first_step, max(step) AS step, sum(tokens) AS tokens,
    sum(seconds) AS seconds
  FROM points GROUP BY run_id, bin
), rates AS (
  SELECT label, place, bin, min(first_step) AS first_step, max(step) AS step,
    round(sum(tokens) / sum(seconds), 6) AS rate, list(run_id ORDER BY run_id) AS run_ids,
    max(warmup_steps) AS warmup_steps, min(scale) AS scale, max(created_at) AS created_at,
    first(factors ORDER BY created_at DESC, run_id) AS factors,
    first(design ORDER BY created_at DESC, run_id) AS design,
    row_number() OVER (PARTITION BY label ORDER BY bin) AS turn
  FROM traces JOIN runs r USING (run_id) WHERE r.study = $study
  GROUP BY label, place, bin HAVING sum(seconds) > 0
)
SELECT * EXCLUDE (turn, factors, design), CASE WHEN turn = 1 THEN factors END AS factors,
  CASE WHEN turn = 1 THEN design END AS design
FROM rates ORDER BY place, step"""
_LEAST = 0.01  # how far the axis reaches at least on either side of 1, so that rounding looks small


def _build(rows: list[Row], styles: Styles) -> Figure | None:
    groups = by_label(rows)
    heads = [mine[0] for mine in groups.values()]
    pairs = [(a.label, b.label) for a, b in compared(groups_of(heads), declared(heads))]
    drawn = [row for label, base in pairs for row in _ratios(groups[label], groups[base])]
    if not drawn:
        return None
    kept = {row["label"] for row in drawn}
    over = list(dict.fromkeys(base for label, base in pairs if label in kept))
    used = frozenset(run for label in (*kept, *over) for row in groups[label] for run in row["run_ids"])
    title = f"rate over that of {over[0] if len(over) == 1 else 'the baseline'}"
    lines = Lines(title, ".3f", drawn, [], [], rule=1.0, least=_LEAST)
    return Figure(
        spec=plot(lines, styles),
        caption=(
            f"Tokens per second divided by those of {names(over)} over the same steps, at most "
            f"{limit(100, rows, len(used))} points per group, all runs of a group together: above 1 is "
            f"faster. Only points after the warm-up; the axis spans at least {_LEAST:g} either way."
        ),
        description=f"{title} over steps. At the end: "
        + "; ".join(f"{label} {row['value']:.3f}" for label, row in lines.last.items())
        + ".",
        interval="none: a trace; the comparison has the intervals and verdicts",
        used=used,
        finding=_finding(drawn),
        table=table(lines, styles),
    )


def _ratios(mine: list[Row], base: list[Row]) -> list[dict[str, Any]]:
    """The ratio at each of the bins that both have, after the warm-up."""
    rates = {(row["first_step"], row["step"]): row["rate"] for row in base}
    return [
        {"label": row["label"], "step": row["step"], "value": row["rate"] / rates[key]}
        for row in mine
        if (key := (row["first_step"], row["step"])) in rates and row["first_step"] > row["warmup_steps"]
    ]


def _finding(rows: list[Row]) -> str:
    """Which lines stay on one side of 1."""
    sides: dict[str, list[str]] = {}
    for label, mine in by_label(rows).items():
        above, below = (all(row["value"] > 1 for row in mine), all(row["value"] < 1 for row in mine))
        sides.setdefault("above" if above else "below" if below else "on both sides of", []).append(label)
    said = [f"{names(labels)} {side} the baseline" for side, labels in sides.items()]
    return f"Observed at the points after the warm-up: {'; '.join(said)}"


chart = Chart(
    title="Tokens per second against the baseline",
    page="tokens",
    order=22,
    question="Is a group faster or slower than the baseline all the way?",
    sql=_SQL,
    build=_build,
    empty="It needs a declared baseline, and another group that logged the same steps.",
)
