"""Shared by the figures that show one rate or cost per run."""

from __future__ import annotations

from analysis import stats
from analysis.charts import Figure, Row, Styles
from analysis.charts._dots import Axis, called, figure


def dots(rows: list[Row], styles: Styles, axis: Axis, value: stats.Quantity, what: str) -> Figure:
    """The figure of a quantity derived from each run's median step seconds.

    Args:
        rows: the answer to COMPLETED_RUNS.
        styles: by label.
        axis: what the quantity is.
        value: gives the quantity.
        what: the quantity in words, as the caption starts.
    """
    points = [(row["label"], called(row), value(row, row["step_seconds"])) for row in rows]
    return figure(points, stats.estimates(rows, value), styles, axis, what, rows)
