"""A study's charts as the report builds them, and how light a colour is."""

from __future__ import annotations

from pathlib import Path

from analysis import charts
from analysis.charts import Figure, styles
from analysis.query.ask import answer
from analysis.report import facts
from analysis.store import database as store


def draw(root: Path, name: str, study: str = "backends") -> Figure | None:
    """A chart of a study; None where it has nothing to show."""
    chart = charts.load(name)
    with store.open_for_reading(root) as connection:
        labels = facts.gather(connection, study).labels
        return chart.build(answer(connection, facts.literal(chart.sql, study)).parsed(), styles(labels))


def luminance(colour: str) -> float:
    """Relative luminance of `#rrggbb`, as WCAG defines it."""
    parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
