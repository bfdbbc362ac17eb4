"""Which cells a `where`, an `exclude`, a baseline or `--only` means, and why one means none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from model.record.backends import check_name
from model.record.errors import UserError, did_you_mean
from runner.inputs.cells.options import Setting
from runner.inputs.document import MOST_SHOWN, KeyPath, Problem
from runner.inputs.settings import Scalar, nearest
from runner.inputs.study import Study, Where
from runner.inputs.validation import shown


def matches(factors: Mapping[str, Setting], where: Where) -> bool:
    """Whether a cell has each of these factors at the value, or one of the values."""
    return all(axis in factors and is_one_of(factors[axis][0], wanted) for axis, wanted in where.items())


def is_one_of(value: Any, wanted: Scalar | list[Scalar]) -> bool:
    """Whether a value is this one, or one of these. Unlike in Python, `true` is not 1 here."""
    listed = wanted if isinstance(wanted, list) else [wanted]
    return value in listed and any(
        value == each and isinstance(value, bool) == isinstance(each, bool) for each in listed
    )


def mistyped(
    study: Study, where: Where, path: KeyPath, possible: Sequence[Mapping[str, Setting]]
) -> list[Problem]:
    """Report listed values that no cell can have. If others match, nothing else would notice.

    Args:
        possible: what cells can have, at any scale at which this `where` is used.
    """
    return [
        Problem(study.document.mark((*path, axis, i)), _unknown(axis, each, values))
        for axis, wanted in where.items()
        if (values := _values(axis, possible))
        for i, each in enumerate(wanted if isinstance(wanted, list) else ())
        if not is_one_of(each, values)
    ]


def _unknown(axis: str, got: Any, values: Sequence[Any]) -> str:
    if axis == "attention":
        try:
            check_name(str(got))
        except UserError as error:
            return str(error)
    return _not_among(axis, got, values)


def _values(axis: str, cells: Sequence[Mapping[str, Setting]]) -> list[Any]:
    return [cell[axis][0] for cell in cells if axis in cell]


def _not_among(axis: str, got: Any, values: Sequence[Any]) -> str:
    different = list(dict.fromkeys(map(shown, values)))
    listed = ", ".join(different[:MOST_SHOWN]) + (", ..." if len(different) > MOST_SHOWN else "")
    quoted = isinstance(got, str) and got in map(str, values)
    return f"the values of {axis} are {listed}, got {shown(got)}{': leave out the quotes' if quoted else ''}"


def idle(study: Study, where: Where, path: KeyPath, cells: Sequence[Mapping[str, Setting]]) -> Problem:
    """Why no cell matches; names the first value that no cell has."""
    for axis, wanted in where.items():
        mark = study.document.mark((*path, axis))
        if axis not in study.axes:
            known = did_you_mean(axis, study.axes, nearest(axis, study.axes))
            return Problem(mark, f"'{axis}' is not a factor of this study {known}")
        if not any(matches(cell, {axis: wanted}) for cell in cells):
            return Problem(mark, f"matches no cell: {_not_among(axis, wanted, _values(axis, cells))}")
    return Problem(study.document.mark(path), "matches no cell: no cell has all of these values")
