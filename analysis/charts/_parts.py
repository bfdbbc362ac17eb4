"""The parts of a profiled step, which several figures show."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
FORWARD = ("products", "attention", "elementwise", "copies", "idle")  # those of inference


def columns() -> str:
    """SQL that makes a row of a step's parts: seconds by part, and `hidden` of the communication."""
    seconds = ", ".join(f"sum(seconds) FILTER (part = '{part}') AS {part}" for part in NAMES)
    return f"{seconds}, sum(hidden_seconds) FILTER (part = 'communication') AS hidden"


def whole(row: Row) -> float:
    """Seconds of the step: all parts. What other work hides is none."""
    return sum(row[part] or 0.0 for part in NAMES)
