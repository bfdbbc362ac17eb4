"""Quantities over the numeric axes of a study: as lines over one axis, and as heat maps over two."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from analysis.charts import Chart, Row
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


def _both_charts(
    name: str,
    titles: tuple[str, str],
    order: int,
    subject: str,
    lacks: str,
    quantity_of: Callable[[list[Row]], tuple[CellQuantity, str]],
    warmup: bool | None = True,
    where: str = "",
    tasks: tuple[str, ...] = ("training",),
) -> dict[str, Chart]:
    """The charts of a quantity over one axis and over two, by name.

    Args:
        titles: of the figure over one axis, and of the one over two.
        subject: of the figures' questions, with its verb.
        lacks: what no run has where there is nothing to show.
        quantity_of: rows -> the quantity, and what to say first.
        where: how the questions end.
    """
    lines = Chart(
        title=titles[0],
        page="sweeps",
        order=order,
        question=f"How does {subject} change along the study's numeric axes{where}?",
        sql=SWEEP_RUNS,
        build=lambda rows, _styles: lines_figure(rows, *quantity_of(rows)),
        applies=has_lines,
        empty=f"No run of this sweep completed with {lacks}.",
        warmup=warmup,
        tasks=tasks,
    )
    maps = replace(
        lines,
        title=titles[1],
        question=f"How does {subject} change with two numeric axes at once{where}?",
        build=lambda rows, _styles: maps_figure(rows, *quantity_of(rows)),
        applies=has_map,
    )
    return {name: lines, f"{name}_map": maps}


_BOTH_TASKS = ("training", "inference")
charts = {
    **_both_charts(
        "sweep_tokens", ("Sweeps", "Throughput over two axes"), 6, "throughput", "tokens per second",
        lambda _rows: (TOKENS, ""), tasks=_BOTH_TASKS,
    ),
    **_both_charts(
        "sweep_mfu", ("MFU over an axis", "MFU over two axes"), 7, "the use of the device",
        "step records after the warm-up and a known FLOP count", utilisation,
    ),
    **_both_charts(
        "sweep_step_time", ("Time of one step over an axis", "Time of one step over two axes"), 7,
        "the time of a step", "seconds per step", lambda _rows: (STEP_SECONDS, ""),
    ),
    **_both_charts(
        "sweep_memory", ("Peak memory over an axis", "Peak memory over two axes"), 8,
        "peak memory", "peak memory", lambda _rows: (PEAK_MEMORY, ""), warmup=False,
        where=", and where does it run out", tasks=_BOTH_TASKS,
    ),
    **_both_charts(
        "sweep_loss", ("Final loss over an axis", "Final loss over two axes"), 9,
        "the final loss", "final loss", lambda _rows: (FINAL_LOSS, ""), warmup=None,
    ),
}  # fmt: skip
