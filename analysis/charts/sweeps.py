"""Quantities over the numeric axes of a study: as lines over one axis, and as heat maps over two."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from analysis.charts import Chart, Figure, Row, Styles
from analysis.charts._quantities import (
    FINAL_LOSS,
    PEAK_MEMORY,
    STEP_SECONDS,
    TOKENS,
    CellQuantity,
    utilisation,
)
from analysis.charts._sweep import has_lines, has_map
from analysis.charts._sweep_lines import lines_figure
from analysis.charts._sweep_map import maps_figure
from analysis.query.statements import SWEEP_RUNS

_Draw = Callable[[list[Row], CellQuantity, str], Figure | None]


@dataclass(frozen=True)
class _SweptQuantity:
    """A quantity that both kinds of figure show.

    Attributes:
        titles: of the figure over one axis, and of the one over two.
        subject: of the figures' questions, with its verb.
        lacks: what no run has where there is nothing to show.
        of_runs: rows -> the quantity, and what to say first.
        where: how the questions end.
    """

    titles: tuple[str, str]
    order: int
    subject: str
    lacks: str
    of_runs: Callable[[list[Row]], tuple[CellQuantity, str]]
    warmup: bool | None = True
    where: str = ""
    tasks: tuple[str, ...] = ("training",)

    def charts(self, name: str) -> dict[str, Chart]:
        """Both charts by name."""
        ways = (
            (name, "change along the study's numeric axes", lines_figure, has_lines),
            (f"{name}_map", "change with two numeric axes at once", maps_figure, has_map),
        )
        return {
            chart_name: Chart(
                title=title,
                page="sweeps",
                order=self.order,
                question=f"How does {self.subject} {changes}{self.where}?",
                sql=SWEEP_RUNS,
                build=partial(self._build, draw),
                applies=applies,
                empty=f"No run of this sweep completed with {self.lacks}.",
                warmup=self.warmup,
                tasks=self.tasks,
            )
            for title, (chart_name, changes, draw, applies) in zip(self.titles, ways, strict=True)
        }

    def _build(self, draw: _Draw, rows: list[Row], _styles: Styles) -> Figure | None:
        return draw(rows, *self.of_runs(rows))


_BOTH_TASKS = ("training", "inference")
_QUANTITIES = {
    "sweep_tokens": _SweptQuantity(
        ("Sweeps", "Throughput over two axes"), 6, "throughput", "tokens per second",
        lambda _rows: (TOKENS, ""), tasks=_BOTH_TASKS,
    ),
    "sweep_mfu": _SweptQuantity(
        ("MFU over an axis", "MFU over two axes"), 7, "the use of the device",
        "step records after the warm-up and a known FLOP count", utilisation,
    ),
    "sweep_step_time": _SweptQuantity(
        ("Time of one step over an axis", "Time of one step over two axes"), 7, "the time of a step",
        "seconds per step", lambda _rows: (STEP_SECONDS, ""),
    ),
    "sweep_memory": _SweptQuantity(
        ("Peak memory over an axis", "Peak memory over two axes"), 8, "peak memory", "peak memory",
        lambda _rows: (PEAK_MEMORY, ""), warmup=False, where=", and where does it run out", tasks=_BOTH_TASKS,
    ),
    "sweep_loss": _SweptQuantity(
        ("Final loss over an axis", "Final loss over two axes"), 9, "the final loss", "final loss",
        lambda _rows: (FINAL_LOSS, ""), warmup=None,
    ),
}  # fmt: skip
charts = {
    name: chart for stem, quantity in _QUANTITIES.items() for name, chart in quantity.charts(stem).items()
}
