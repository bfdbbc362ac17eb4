"""Shared by the figures that show one rate or cost per run."""

from __future__ import annotations

from analysis import stats
from analysis.charts import Figure, Row, Styles
from analysis.charts._dots import MARKS, ORDER, Axis, called, plot


def dots(
    rows: list[Row],
    styles: Styles,
    axis: Axis,
    value: stats.Quantity,
    what: str,
) -> Figure:
    """The figure of a quantity derived from each run's median step seconds.

    Args:
        rows: the answer to COMPLETED_RUNS.
        styles: by label.
        axis: what the quantity is.
        value: gives the quantity.
        what: the quantity in words, as the caption starts.
    """
    found = stats.estimates(rows, value)
    points = [(row["label"], called(row), value(row, row["step_seconds"])) for row in rows]
    seen = "; ".join(f"{label} {found[label].median:,.4g}" for label in sorted(found))
    start = "" if axis.zero else " The axis does not start at zero."
    return Figure(
        spec=plot(points, found, styles, axis),
        caption=f"{what} {MARKS}{start} {ORDER}",
        description=f"Dot plot of {axis.title} by group. Medians: {seen}.",
        interval=stats.methods(found),
        used=frozenset(row["run_id"] for row in rows),
    )
