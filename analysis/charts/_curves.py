"""A study's curves in SQL: at most so many points a line, whatever the study's size."""

from __future__ import annotations

from analysis.charts import Row

_MOST_POINTS, _FEWEST = 20_000, 20  # of a figure's solid lines, and of one line
_MOST_RUNS, _COARSE, _FINE = 1_250, 32, 256  # beyond so many runs, lines are of the coarse curves
# Common table expressions: `points`, a study's curves with the place `bin` of each on a line of at most $most
# points; fewer in a study of so many groups that a page could not hold them. A bin's width is a multiple of
# the curves' widths, so that nothing lies in two bins.
POINTS = f"""\
size AS (
  SELECT CASE WHEN count(*) > {_MOST_RUNS} THEN {_COARSE} ELSE {_FINE} END AS most,
    greatest({_FEWEST}, least($most, {_MOST_POINTS} // count(DISTINCT label))) AS points
  FROM runs WHERE study = $study
), bins AS (
  SELECT most, (ceil(max(step) / any_value(points) / max(width)) * max(width))::BIGINT AS width
  FROM curves JOIN size USING (most) WHERE study = $study AND $wanted GROUP BY most
), points AS (
  SELECT c.*, (step - 1) // b.width AS bin
  FROM curves c JOIN bins b USING (most) WHERE study = $study AND $wanted
)"""


def limit(most: int, rows: list[Row], runs: int) -> int:
    """How many points a line has at most, as `points` has it."""
    held = max(_FEWEST, min(most, _MOST_POINTS // len({row["label"] for row in rows})))
    return min(held, _COARSE) if runs > _MOST_RUNS else held


def points(most: int, wanted: str = "true") -> str:
    """The expressions `POINTS` for lines of at most so many points, of the points that are wanted."""
    return POINTS.replace("$most", str(most)).replace("$wanted", wanted)


def smoothing(rows: list[Row]) -> str:
    """How the lines were smoothed, for the caption: a short run is shown as it is."""
    points = max(row["points"] for row in rows)
    return f"smoothed over {points} points" if points > 1 else "not smoothed"
