"""The labels that a study's rules give to groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from model import attention
from model.config import UNREAD
from runner.spec.cells.cell import Cell
from runner.spec.problems import Problem

LABEL = "label"  # where a cell's marks have the key that gave it


def misleading(cells: Sequence[Cell]) -> Iterator[Problem]:
    """Labels of several groups, and those that are the name of another backend."""
    labelled: dict[str, dict[str, Cell]] = {}
    for cell in cells:
        if cell.label:
            labelled.setdefault(cell.label, {}).setdefault(cell.group, cell)
    for label, groups in labelled.items():
        first, *others = groups.values()
        if others:
            apart = f"tell them apart in `where`, by {_differing(first, others)}"
            yield Problem(
                first.marks[LABEL], f"'{label}' would be the label of {len(groups)} groups: {apart}"
            )
        for cell in groups.values():
            if _is_another_backend(label, cell):
                text = f"'{label}' names a different backend than this group's, {cell.config.attention}"
                yield Problem(cell.marks[LABEL], text)
                break


def _differing(first: Cell, others: Sequence[Cell]) -> str:
    """The factors in which groups differ."""
    differing = (
        axis for axis, value in first.factors.items() if any(other.factors[axis] != value for other in others)
    )
    return " or ".join(axis for axis in differing if axis != "seed")


def _is_another_backend(label: str, cell: Cell) -> bool:
    if "attention" in UNREAD[cell.config.task]:
        return False
    return label in attention.names() and label != cell.config.attention
