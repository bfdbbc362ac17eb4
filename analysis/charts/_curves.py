"""A study's curves in SQL: at most so many points a line, whatever the study's size."""

from __future__ import annotations

from analysis.charts import Row

_MOST_POINTS, _FEWEST = 20_000, 20  # of a figure's solid lines, and of one line
_MOST_RUNS, _COARSE, _FINE = 1_250, 32, 256  # beyond so many runs, lines are of the coarse curves
# Common table expressions: `known`, a study's runs by a number, and `points`, their curves by that number
# with the place `bin` of each on a line of at most $most points; fewer in a study of more groups than a page
# can hold. A bin's width is a multiple of the curves' widths, so that nothing lies in two bins. In a large
# study nearly all points are as wide as a bin, and need not be grouped; where all are, nothing is read twice.
# Numbers, and a group's place instead of its label, because to group many rows by text takes longer.
POINTS = f"""\
known AS (
  SELECT row_number() OVER (ORDER BY run_id)::INTEGER AS run, place::INTEGER AS place,
    run_id, label, seed, outcome, attention, warmup_steps
  FROM runs WHERE study = $study
), size AS (
  SELECT CASE WHEN count(*) > {_MOST_RUNS} THEN {_COARSE} ELSE {_FINE} END AS most,
    greatest({_FEWEST}, least($most, {_MOST_POINTS} // count(DISTINCT label))) AS points
  FROM known
), bins AS (
  SELECT most, (ceil(max(step) / any_value(points) / max(width)) * max(width))::BIGINT AS width,
    min(c.width) AS narrowest
  FROM curves c JOIN size USING (most) WHERE study = $study AND $wanted GROUP BY most
), narrower AS (
  FROM bins WHERE narrowest < width
), points AS (
  SELECT run, place, ((step - 1) // b.width)::INTEGER AS bin,
    first_step, step, records, losses, loss * losses / losses AS loss, tokens, seconds  -- to the bit as below
  FROM curves c JOIN bins b ON b.most = c.most AND b.width = c.width JOIN known USING (run_id)
  WHERE study = $study AND $wanted
  UNION ALL
  SELECT run, place, ((step - 1) // b.width)::INTEGER AS bin,
    min(first_step), max(step), sum(records)::BIGINT, sum(losses)::BIGINT,
    sum(loss * losses) / nullif(sum(losses), 0), sum(tokens)::BIGINT, sum(seconds)
  FROM curves c JOIN narrower b ON b.most = c.most AND b.width <> c.width JOIN known USING (run_id)
  WHERE study = $study AND $wanted GROUP BY run, place, bin
)"""


def limit(most: int, rows: list[Row], runs: int) -> int:
    """How many points a line has at most, as `points` has it."""
    held = max(_FEWEST, min(most, _MOST_POINTS // len({row["label"] for row in rows})))
    return min(held, _COARSE) if runs > _MOST_RUNS else held


def points(most: int, wanted: str = "true") -> str:
    """The expressions `POINTS` for lines of at most so many points, of the points that are wanted."""
    return POINTS.replace("$most", str(most)).replace("$wanted", wanted)


def mean(values: str) -> str:
    """SQL for a mean to nine digits, the same in whatever order the rows come.

    Values of nine digits often have a mean half way between two such numbers. Its last bits, which depend on
    the order, would decide which one it becomes: they are rounded away first.
    """
    return f"round(round(favg({values}), 12), 9)"


def smoothing(rows: list[Row]) -> str:
    """How the lines were smoothed, for the caption: a short run is shown as it is."""
    points = max(row["points"] for row in rows)
    return f"smoothed over {points} points" if points > 1 else "not smoothed"
