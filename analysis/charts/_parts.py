"""The parts of a profiled step, which several figures show."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from analysis.charts._stack import Look
from analysis.charts._style import COLOURS

if TYPE_CHECKING:
    from analysis.charts import Row

NAMES = {
    "products": "matrix products",
    "attention": "attention",
    "loss": "loss",
    "optimizer": "optimizer",
    "elementwise": "norms and elementwise",
    "copies": "copies",
    "communication": "communication",
    "idle": "idle",
}
# One look in all figures, whichever parts a study has. Those that do not compute are light blue or grey.
_LOOKS: dict[str, Look] = {
    "products": (COLOURS[0], 0.35),
    "attention": (COLOURS[1], 1.0),
    "loss": (COLOURS[2], 0.6),
    "optimizer": (COLOURS[3], 0.15),
    "elementwise": (COLOURS[4], 0.35),
    "copies": (COLOURS[6], 0.6),
    "communication": (COLOURS[5], 1.0),
    "idle": (COLOURS[6], 0.15),
}
FORWARD = ("products", "attention", "elementwise", "copies", "idle")  # those of inference


def columns() -> str:
    """SQL that makes a row of a step's parts: seconds by part, and `hidden` of the communication."""
    seconds = ", ".join(f"sum(seconds) FILTER (part = '{part}') AS {part}" for part in NAMES)
    return f"{seconds}, sum(hidden_seconds) FILTER (part = 'communication') AS hidden"


def seen(rows: Iterable[Row]) -> dict[str, Look]:
    """The looks of the parts that any row has, by name, in their order."""
    rows = list(rows)
    return {name: _LOOKS[part] for part, name in NAMES.items() if any(row[part] for row in rows)}


def whole(row: Row) -> float:
    """Seconds of the step: all parts. What other work hides is none."""
    return sum(row[part] or 0.0 for part in NAMES)
