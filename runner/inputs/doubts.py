"""What a study probably does not mean. Each doubt is shown as a warning; the runs start nevertheless."""

from __future__ import annotations

from collections.abc import Sequence

from model.record.units import counted
from runner.inputs.cells.cell import Cell
from runner.inputs.document import Problem


def doubts(cells: Sequence[Cell]) -> list[Problem]:
    """One problem for each line that is doubtful in some cell, in the order of the file."""
    of_one = {doubt for cell in cells for doubt in (_endless_warm_up(cell), _unnamed_shape(cell)) if doubt}
    return sorted(of_one | _nothing_summed(cells))


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


def _unnamed_shape(cell: Cell) -> Problem | None:
    """Attention alone is timed at a shape, and nobody chose that of the default."""
    if cell.config.task != "attention" or "call.shape" in cell.marks:
        return None
    shape = cell.config.call.shape
    return Problem(cell.origin, f"warning: without call.shape, attention is timed at {shape}, an 8B llama's")


def _nothing_summed(cells: Sequence[Cell]) -> set[Problem]:
    """Gradients are summed across processes that have data of their own, and no run of the study has any."""
    training = [cell for cell in cells if cell.config.task == "training"]
    wide = [cell for cell in training if cell.config.train.reduce == "float32"]
    parallel = [cell.config.parallel for cell in wide]
    if any(each.processes > each.tensor for each in parallel):
        return set()
    text = (
        "train.reduce float32 changes nothing: no run sums gradients across processes; "
        "leave it out, or set parallel.shard or parallel.replicate"
    )
    return {Problem(cell.marks.get("train.reduce", cell.origin), f"warning: {text}") for cell in wide}
