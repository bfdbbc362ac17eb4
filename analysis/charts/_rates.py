"""Shared by the figures that show one rate or cost a run."""

from __future__ import annotations

from collections.abc import Callable

from analysis.charts import Figure, Row, Styles
from analysis.charts._dots import Axis, estimates, intervals, plot

# One row a run. The step seconds after the warm-up come along: with a single run they carry the interval.
COMPLETED_RUNS = """\
SELECT r.label, r.run_id, r.seed, r.step_seconds, r.tokens_per_step, r.tokens_per_second, r.mfu, r.tflops,
  r.flop_per_token, r.gpus, r.peak_flops, r.peak_source, r.device, r.counted_records,
  (SELECT list(s.step_seconds ORDER BY s.step) FROM steps s
   WHERE s.study = r.study AND s.run_id = r.run_id AND s.counted) AS counted_step_seconds
FROM runs r
WHERE r.study = $study AND r.outcome = 'completed' AND r.step_seconds IS NOT NULL
ORDER BY r.label, r.seed, r.run_id"""

MARKS = "Each mark is a run, the bar its group's median, the line the interval."
ORDER = "Rows are sorted by their median; where intervals overlap, the order is not a finding."


def rate(column: str) -> Callable[[Row, float], float]:
    """A rate at another time a step than the run's median: views.sql has its formula, this only scales it."""

    def at(row: Row, seconds: float) -> float:
        return float(row[column] * row["step_seconds"] / seconds)

    return at


def dots(
    rows: list[Row],
    styles: Styles,
    axis: Axis,
    value: Callable[[Row, float], float],
    what: str,
    **named: str,
) -> Figure:
    """The figure of a quantity derived from each run's median step seconds.

    Args:
        rows: of COMPLETED_RUNS.
        styles: by label.
        axis: what the quantity is.
        value: (row, seconds a step) -> the quantity; monotone in the seconds.
        what: the quantity in words, first in the caption.
        named: a title or note, as in Figure.
    """
    found = estimates(rows, value)
    points = [
        (row["label"], f"seed {row['seed']}, {row['run_id']}", value(row, row["step_seconds"]))
        for row in rows
    ]
    seen = "; ".join(f"{label} {found[label].median:,.4g}" for label in sorted(found))
    start = "" if axis.zero else " The axis does not start at zero."
    return Figure(
        spec=plot(points, found, styles, axis),
        caption=f"{what} {MARKS}{start} {ORDER}",
        description=f"Dot plot of {axis.title} by group. Medians: {seen}.",
        interval=intervals(found),
        used=frozenset(row["run_id"] for row in rows),
        **named,
    )
