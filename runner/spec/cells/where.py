"""Which cells a `where`, an `exclude`, a baseline or `--only` means, and why one means none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from model.attention import check_name
from model.errors import UserError, did_you_mean
from runner.spec.cells.options import Setting
from runner.spec.document import KeyPath
from runner.spec.problems import MOST_SHOWN, Problem
from runner.spec.settings import Scalar, nearest
from runner.spec.study import Study, Where
from runner.spec.validation import shown


def matches(factors: Mapping[str, Setting], where: Where) -> bool:
    """Whether a cell has each of these factors at the value, or one of the values."""
    return all(
        axis in factors and _is_one_of(factors[axis][0], wanted if isinstance(wanted, list) else [wanted])
        for axis, wanted in where.items()
    )


def _is_one_of(value: Any, wanted: list[Scalar]) -> bool:
    """Unlike in Python, `true` is not 1 here."""
    return any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in wanted)


def no_backends(study: Study, where: Where, path: KeyPath) -> Iterator[Problem]:
    """Report backends in a list that do not exist. As the others match, nothing else would notice."""
    wanted = where.get("attention")
    for i, name in enumerate(wanted if isinstance(wanted, list) else ()):
        try:
            check_name(str(name))
        except UserError as error:
            yield Problem(study.document.mark((*path, "attention", i)), str(error))


def idle(study: Study, where: Where, path: KeyPath, cells: Sequence[Mapping[str, Setting]]) -> Problem:
    """Why no cell matches; names the first value that no cell has."""
    for axis, wanted in where.items():
        mark = study.document.mark((*path, axis))
        if axis not in study.axes:
            known = did_you_mean(axis, study.axes, nearest(axis, study.axes))
            return Problem(mark, f"'{axis}' is not a factor of this study {known}")
        if not any(matches(cell, {axis: wanted}) for cell in cells):
            values = list(dict.fromkeys(shown(cell[axis][0]) for cell in cells if axis in cell))
            more = ", ..." if len(values) > MOST_SHOWN else ""
            listed = ", ".join(values[:MOST_SHOWN]) + more
            return Problem(mark, f"matches no cell: the values of {axis} are {listed}")
    return Problem(study.document.mark(path), "matches no cell: no cell has all of these values")
