"""The labels that a study's rules give to groups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from model.record import backends
from model.record.config import UNREAD
from runner.inputs.cells.cell import Cell
from runner.inputs.document import Problem

Parts = frozenset[tuple[str, str]]
_MANY = 3  # factors from which on names leave out what is as in the baseline
_SHOWN = 3  # seeds that a message names
LABEL = "label"  # where a cell's marks have the key that gave it


def misleading(cells: Sequence[Cell], baseline: Mapping[str, Any] | None = None) -> Iterator[Problem]:
    """Labels of several groups or of a part of one, and those that name another backend, value or group.

    Args:
        baseline: factors of the study's baseline, of which names of many factors leave out what is equal.
    """
    yield from _splitting(cells)
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
    names = dict(_names(cells, baseline or {})) if labelled else {}
    for label, groups in labelled.items():
        for group, cell in groups.items():
            if other := _other_value(label, cell):
                yield Problem(cell.marks[LABEL], f"'{label}' is not true of this group, which has {other}")
            elif names.get(_parts(label), group) != group:
                text = (
                    f"'{label}' is what another group is called by its factors; give this one another label"
                )
                yield Problem(cell.marks[LABEL], text)


def _splitting(cells: Sequence[Cell]) -> Iterator[Problem]:
    """Labels that not all runs of a group get: a label is the whole group's."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell.group, []).append(cell)
    told = set()
    for members in groups.values():
        given = [cell for cell in members if cell.label]
        others = [cell for cell in members if given and cell.label != given[0].label]
        if others and given[0].marks[LABEL] not in told:
            told.add(given[0].marks[LABEL])
            seeds = ", ".join(str(cell.config.seed) for cell in others[:_SHOWN])
            seeds += ", ..." * (len(others) > _SHOWN)
            text = (
                f"'{given[0].label}' would be the label of seed {given[0].config.seed} but not of seed "
                f"{seeds} of the same group, and a label names a group: leave `seed` out of `where`"
            )
            yield Problem(given[0].marks[LABEL], text)


def _parts(label: str) -> Parts:
    """What a name made of factors says: a value by factor, and the backend under its own name."""
    pairs = [part.rpartition("=") for part in label.split(", ")]
    return frozenset((axis or "attention", _plain(value)) for axis, _, value in pairs)


def _plain(value: str) -> str:
    """A value as any way of writing its number."""
    try:
        return repr(float(value))
    except ValueError:
        return value.lower()


def _names(cells: Sequence[Cell], baseline: Mapping[str, Any]) -> Iterator[tuple[Parts, str]]:
    """The names of groups without a label, made of their factors as `labelled` in views.sql does."""
    groups = {cell.group: cell for cell in cells}.values()
    values = {axis: {cell.factors[axis] for cell in groups} for axis in cells[0].factors if axis != "seed"}
    varying = [axis for axis, found in values.items() if len(found) > 1]
    for cell in groups:
        if cell.label:
            continue
        whole = {axis: _plain(str(cell.factors[axis])) for axis in varying}
        kinds = [whole]
        if len(varying) >= _MANY and baseline:
            apart = {axis: value for axis, value in whole.items() if cell.factors[axis] != baseline.get(axis)}
            kinds.append(apart or {"attention": "baseline"})
        for kind in kinds:
            yield frozenset(kind.items()), cell.group
            yield frozenset((axis.rpartition(".")[2], value) for axis, value in kind.items()), cell.group


def _other_value(label: str, cell: Cell) -> str | None:
    """`learning_rate=0.001`, where a label says another value of it."""
    said = {axis: value for axis, value in _parts(label) if "=" in label}
    for axis, value in cell.factors.items():
        for name in (axis, axis.rpartition(".")[2]):
            if name in said and name != "attention" and said[name] != _plain(str(value)):
                return f"{name}={value}"
    return None


def _differing(first: Cell, others: Sequence[Cell]) -> str:
    """The factors in which groups differ."""
    differing = (
        axis for axis, value in first.factors.items() if any(other.factors[axis] != value for other in others)
    )
    return " or ".join(axis for axis in differing if axis != "seed")


def _is_another_backend(label: str, cell: Cell) -> bool:
    if "attention" in UNREAD[cell.config.task]:
        return False
    return label in backends.names() and label != cell.config.attention
