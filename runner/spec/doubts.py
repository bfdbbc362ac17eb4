"""What a study probably does not mean. Each doubt is shown as a warning; the runs start nevertheless."""

from __future__ import annotations

from collections.abc import Sequence

from model.units import counted
from runner.spec.cells.cell import Cell
from runner.spec.problems import Problem


def doubts(cells: Sequence[Cell]) -> list[Problem]:
    """One problem for each line that is doubtful in some cell, in the order of the file."""
    return sorted({doubt for cell in cells if (doubt := _endless_warm_up(cell))})


def _endless_warm_up(cell: Cell) -> Problem | None:
    """The learning rate reaches its value at step warmup_steps + 1; studies of it would compare nothing."""
    train = cell.config.train
    if cell.config.task != "training" or train.warmup_steps < train.steps:
        return None
    default = "" if "train.warmup_steps" in cell.marks else " (the default)"
    text = (
        f"the warm-up of {counted(train.warmup_steps, 'step')}{default} does not end within "
        f"{counted(train.steps, 'step')}, so the learning rate never reaches its value: "
        f"set train.warmup_steps below {train.steps}"
    )
    settings = ("train.warmup_steps", "train.steps")
    mark = next((cell.marks[each] for each in settings if each in cell.marks), cell.origin)
    return Problem(mark, f"warning: {text}")
