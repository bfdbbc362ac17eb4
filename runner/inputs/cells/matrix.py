"""The candidates for a study's cells: `matrix` and `zip` without `exclude`, and `include`. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any, TypeVar

from runner.inputs.cells.options import Setting
from runner.inputs.cells.where import idle, matches, mistyped
from runner.inputs.document import InvalidFile, KeyPath, Mark, Problem
from runner.inputs.settings import flatten
from runner.inputs.study import MAX_CELLS, Scale, Study

Axis = list[dict[str, Setting]]  # its steps: the value of a factor, or of several that vary together
Candidate = tuple[dict[str, Setting], Mark]  # a cell's factors, and the key that produced it
Entry = TypeVar("Entry")


def common(study: Study, overlay: Scale, scale_path: KeyPath) -> dict[str, Setting]:
    """The settings that all cells share: the study's `base`, then the scale's `set`."""
    return marked(study, study.file.base, ("base",)) | marked(study, overlay.set, (*scale_path, "set"))


def marked(study: Study, given: Mapping[str, Any], path: KeyPath) -> dict[str, Setting]:
    """A mapping's settings by dotted path, each with where it was set."""
    return {dotted: (value, study.document.mark(place)) for dotted, value, place in flatten(given, path)}


def candidates(study: Study, overlay: Scale, scale_path: KeyPath, repeats: int) -> Iterator[Candidate]:
    """The factors of each candidate, in the order of the file.

    Raises:
        InvalidFile: there are too many, an `exclude` matches none, or none is left.
    """
    axes = [*_matrix(study, overlay, scale_path), *_zipped(study, overlay, scale_path)]
    if (cells := prod(map(len, axes))) * repeats > MAX_CELLS:
        times = f", {repeats} times each" if repeats > 1 else ""
        problem = f"the matrix has {cells:,} cells{times}; the limit is {MAX_CELLS:,}"
        raise InvalidFile([Problem(study.document.mark(("matrix",)), problem)])
    added = extended(study.file.include, overlay.include, "include", scale_path)
    if axes:
        yield from _kept(study, axes, bool(added))
    for entry, path in added:
        yield marked(study, entry, path), study.document.mark(path)
    if not axes and not added:
        yield {}, study.document.mark(())


def _matrix(study: Study, overlay: Scale, scale_path: KeyPath) -> Iterator[Axis]:
    for axis, values in study.file.matrix.items():
        replaced = axis in overlay.matrix
        path: KeyPath = (*scale_path, "matrix", axis) if replaced else ("matrix", axis)
        chosen = overlay.matrix[axis] if replaced else values
        yield [{axis: (value, study.document.mark((*path, i)))} for i, value in enumerate(chosen)]


def _zipped(study: Study, overlay: Scale, scale_path: KeyPath) -> Iterator[Axis]:
    for i, own in enumerate(study.file.zip):
        path: KeyPath = ("zip", i)
        group = own
        for j, other in enumerate(overlay.zip):
            if set(other) == set(own):
                group, path = other, (*scale_path, "zip", j)
        rows = range(len(next(iter(group.values()))))
        marks = {axis: [study.document.mark((*path, axis, row)) for row in rows] for axis in group}
        yield [{axis: (values[row], marks[axis][row]) for axis, values in group.items()} for row in rows]


def _kept(study: Study, axes: list[Axis], others: bool) -> Iterator[Candidate]:
    """Every combination of the axes that no `exclude` matches; at least one, unless there are others."""
    excluded, kept, mark = [0] * len(study.file.exclude), 0, study.document.mark(("matrix",))
    for combination in itertools.product(*axes):
        factors = {axis: setting for part in combination for axis, setting in part.items()}
        hits = [i for i, where in enumerate(study.file.exclude) if matches(factors, where)]
        for i in hits:
            excluded[i] += 1
        if not hits:
            kept += 1
            yield factors, mark
    _refuse_idle_excludes(study, axes, excluded)
    if not kept and not others:
        text = "removes every cell, so there is nothing to run"
        raise InvalidFile([Problem(study.document.mark(("exclude",)), text)])


def _refuse_idle_excludes(study: Study, axes: list[Axis], hits: list[int]) -> None:
    cells, possible = [step for axis in axes for step in axis], [*_of_axes(study, *study.scale_names)]
    problems = []
    for i, where in enumerate(study.file.exclude):
        wrong = mistyped(study, where, ("exclude", i), possible)
        problems += wrong if wrong or hits[i] else [idle(study, where, ("exclude", i), cells)]
    if problems:
        raise InvalidFile(problems)


def extended(
    own: Sequence[Entry], scaled: Sequence[Entry], key: str, scale_path: KeyPath
) -> list[tuple[Entry, KeyPath]]:
    """The entries of a study's list, then those that a scale adds, each with its path."""
    found: list[tuple[Entry, KeyPath]] = [(entry, (key, i)) for i, entry in enumerate(own)]
    return found + [(entry, (*scale_path, key, i)) for i, entry in enumerate(scaled)]


def _of_axes(study: Study, *scales: str) -> Iterator[dict[str, Setting]]:
    """The steps of all axes at these scales, without the combinations."""
    for overlay, path in map(study.scale, scales):
        for axis in (*_matrix(study, overlay, path), *_zipped(study, overlay, path)):
            yield from axis


def possible(study: Study, *scales: str) -> Iterator[dict[str, Setting]]:
    """What cells can have at these scales, without the combinations."""
    for name in scales:
        overlay, path = study.scale(name)
        yield from (steps := [*_of_axes(study, name)])
        shared, axes = common(study, overlay, path), {axis for step in steps for axis in step}
        yield {dotted: setting for dotted, setting in shared.items() if dotted not in axes}
        added = extended(study.file.include, overlay.include, "include", path)
        yield from (shared | marked(study, *entry) for entry in added)
