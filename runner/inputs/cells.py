"""The cells that a study asks for: `matrix` and `zip` without `exclude`, then `include`.

Also which of them a `where` means, and why it means none. Pure; nothing here resolves a cell's configuration.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, TypeVar

from model.record.backends import check_name
from model.record.config import RunConfig
from model.record.errors import UserError, did_you_mean
from model.record.outcome import Outcome
from model.record.records import Override
from model.record.reported import Reported
from runner.inputs.document import MOST_SHOWN, InvalidFile, KeyPath, Mark, Problem
from runner.inputs.profile import Resources
from runner.inputs.settings import Scalar, Setting, flatten, nearest
from runner.inputs.study import MAX_CELLS, Scale, Study, Where
from runner.inputs.validation import as_yaml

Factors = dict[str, Scalar]
Steps = list[dict[str, Setting]]  # of an axis: the value of a factor, or of several that vary together
Candidate = tuple[dict[str, Setting], Mark]  # a cell's factors, and the key that produced it
Entry = TypeVar("Entry")


@dataclass(frozen=True)
class Cell:
    """One run of a study, fully resolved."""

    run_id: str
    group: str
    factors: Factors
    repeat: int
    config: RunConfig
    expected: tuple[Outcome, ...]  # any of these, the likeliest first
    because: str | None
    label: str | None  # of its group
    reported: tuple[Reported, ...]  # by others, of its group
    resources: Resources
    plain: Mapping[str, Any] = field(repr=False)  # resources and configuration, as JSON has them
    why: tuple[str, ...]
    overridden: Mapping[str, Override]  # by the scale and by options
    marks: Mapping[str, Mark] = field(repr=False)  # where each value was set, for later errors
    origin: Mark = field(repr=False)  # the key that produced the cell
    position: int = 0  # in the order of starting, from 1
    block: int | None = None

    def with_fields(self, **changes: Any) -> Cell:
        """The cell with other values of these fields; ten times as fast as `dataclasses.replace`."""
        changed = object.__new__(Cell)
        changed.__dict__.update(self.__dict__, **changes)
        return changed

    def as_json(self) -> dict[str, Any]:
        """The cell as `expand --json` prints it."""
        names = ("run_id", "group", "factors", "repeat", "position", "block", "because", "label", "why")
        about = {name: getattr(self, name) for name in names}
        first, *others = self.expected
        return {**about, "expected_outcome": first, "also_expected": others, **self.plain}


def common_settings(study: Study, overlay: Scale, scale_path: KeyPath) -> dict[str, Setting]:
    """The settings that all cells share: the study's `base`, then the scale's `set`."""
    base = flat_settings(study, study.file.base, ("base",))
    return base | flat_settings(study, overlay.set, (*scale_path, "set"))


def flat_settings(study: Study, given: Mapping[str, Any], path: KeyPath) -> dict[str, Setting]:
    """A mapping's settings by dotted path, each with where it was set."""
    return {dotted: (value, study.document.mark(place)) for dotted, value, place in flatten(given, path)}


def entries_at_scale(
    own: Sequence[Entry], scaled: Sequence[Entry], key: str, scale_path: KeyPath
) -> list[tuple[Entry, KeyPath]]:
    """The entries of a study's list, then those that a scale adds, each with its path."""
    entries: list[tuple[Entry, KeyPath]] = [(entry, (key, i)) for i, entry in enumerate(own)]
    return entries + [(entry, (*scale_path, key, i)) for i, entry in enumerate(scaled)]


def list_candidates(study: Study, overlay: Scale, scale_path: KeyPath, repeats: int) -> Iterator[Candidate]:
    """The factors of each candidate, in the order of the file.

    Raises:
        InvalidFile: there are too many, an `exclude` matches none, or none is left.
    """
    axes = [*_axes(study, overlay, scale_path)]
    if (cells := prod(map(len, axes))) * repeats > MAX_CELLS:
        times = f", {repeats} times each" if repeats > 1 else ""
        problem = f"the matrix has {cells:,} cells{times}; the limit is {MAX_CELLS:,}"
        raise InvalidFile.at(study.document.mark(("matrix",)), problem)
    added = entries_at_scale(study.file.include, overlay.include, "include", scale_path)
    if axes:
        yield from _without_excluded(study, axes, bool(added))
    for entry, path in added:
        yield flat_settings(study, entry, path), study.document.mark(path)
    if not axes and not added:
        yield {}, study.document.mark(())


def possible_settings(study: Study, *scales: str) -> Iterator[dict[str, Setting]]:
    """Settings that cells can have at these scales, without the combinations."""
    for name in scales:
        overlay, path = study.scale(name)
        steps = [step for axis in _axes(study, overlay, path) for step in axis]
        yield from steps
        shared, factors = common_settings(study, overlay, path), {factor for step in steps for factor in step}
        yield {dotted: setting for dotted, setting in shared.items() if dotted not in factors}
        added = entries_at_scale(study.file.include, overlay.include, "include", path)
        yield from (shared | flat_settings(study, *entry) for entry in added)


def _axes(study: Study, overlay: Scale, scale_path: KeyPath) -> Iterator[Steps]:
    """The axes of `matrix`, then the groups of `zip`, as a scale has them."""
    for axis, own_values in study.file.matrix.items():
        replaced = axis in overlay.matrix
        path: KeyPath = (*scale_path, "matrix", axis) if replaced else ("matrix", axis)
        values = overlay.matrix[axis] if replaced else own_values
        yield [{axis: (value, study.document.mark((*path, i)))} for i, value in enumerate(values)]
    for i, own_group in enumerate(study.file.zip):
        path, group = ("zip", i), own_group
        for j, other in enumerate(overlay.zip):
            if set(other) == set(own_group):
                path, group = (*scale_path, "zip", j), other
        rows = range(len(next(iter(group.values()))))
        marks = {axis: [study.document.mark((*path, axis, row)) for row in rows] for axis in group}
        yield [{axis: (values[row], marks[axis][row]) for axis, values in group.items()} for row in rows]


def _without_excluded(study: Study, axes: list[Steps], others: bool) -> Iterator[Candidate]:
    """Every combination of the axes that no `exclude` matches; at least one, unless there are others."""
    excludes = study.file.exclude
    hits, kept, mark = [0] * len(excludes), 0, study.document.mark(("matrix",))
    for combination in itertools.product(*axes):
        factors = {axis: setting for step in combination for axis, setting in step.items()}
        matching = [i for i, where in enumerate(excludes) if matches(factors, where)]
        for i in matching:
            hits[i] += 1
        if not matching:
            kept += 1
            yield factors, mark
    steps, problems = [step for axis in axes for step in axis], list[Problem]()
    at_any_scale = [
        step for scale in study.scale_names for axis in _axes(study, *study.scale(scale)) for step in axis
    ]
    for i, where in enumerate(excludes):
        wrong = impossible_values(study, where, ("exclude", i), at_any_scale)
        problems += wrong if wrong or hits[i] else [no_match(study, where, ("exclude", i), steps)]
    if problems:
        raise InvalidFile(problems)
    if not kept and not others:
        text = "removes every cell, so there is nothing to run"
        raise InvalidFile.at(study.document.mark(("exclude",)), text)


def matches(factors: Mapping[str, Setting], where: Where) -> bool:
    """Whether a cell has each of these factors at the value, or one of the values."""
    return all(axis in factors and is_one_of(factors[axis][0], wanted) for axis, wanted in where.items())


def is_one_of(value: Any, wanted: Scalar | list[Scalar]) -> bool:
    """Whether a value is this one, or one of these. Unlike in Python, `true` is not 1 here."""
    listed = wanted if isinstance(wanted, list) else [wanted]
    return value in listed and any(
        value == other and isinstance(value, bool) == isinstance(other, bool) for other in listed
    )


def impossible_values(
    study: Study, where: Where, path: KeyPath, settings: Sequence[Mapping[str, Setting]]
) -> list[Problem]:
    """Problems of listed values that no cell can have. If others match, nothing else would notice.

    Args:
        settings: what cells can have, at any scale at which this `where` is used.
    """
    problems = list[Problem]()
    for axis, wanted in where.items():
        values = [cell[axis][0] for cell in settings if axis in cell]
        for i, value in enumerate(wanted if values and isinstance(wanted, list) else ()):
            if is_one_of(value, values):
                continue
            text = _not_among(axis, value, values)
            if axis == "attention":
                try:
                    check_name(str(value))
                except UserError as error:  # no backend at all
                    text = str(error)
            problems.append(Problem(study.document.mark((*path, axis, i)), text))
    return problems


def _not_among(axis: str, value: Any, values: Sequence[Any]) -> str:
    different = list(dict.fromkeys(map(as_yaml, values)))
    listed = ", ".join(different[:MOST_SHOWN]) + (", ..." if len(different) > MOST_SHOWN else "")
    quoted = isinstance(value, str) and value in map(str, values)
    advice = ": leave out the quotes" if quoted else ""
    return f"the values of {axis} are {listed}, got {as_yaml(value)}{advice}"


def no_match(study: Study, where: Where, path: KeyPath, cells: Sequence[Mapping[str, Setting]]) -> Problem:
    """Why no cell matches; names the first value that no cell has."""
    for axis, wanted in where.items():
        mark = study.document.mark((*path, axis))
        if axis not in study.axes:
            advice = did_you_mean(axis, study.axes, nearest(axis, study.axes))
            return Problem(mark, f"'{axis}' is not a factor of this study {advice}")
        if not any(matches(cell, {axis: wanted}) for cell in cells):
            values = [cell[axis][0] for cell in cells if axis in cell]
            return Problem(mark, f"matches no cell: {_not_among(axis, wanted, values)}")
    return Problem(study.document.mark(path), "matches no cell: no cell has all of these values")
