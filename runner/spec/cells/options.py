"""Reads `--set` and `--only`: settings for all cells, and which cells are wanted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from model.config import Task
from model.errors import UserError, did_you_mean
from runner.spec.document import parse
from runner.spec.problems import InvalidFile, Mark, Problem
from runner.spec.settings import Scalar, leaves, nearest, short_for, unknown

Setting = tuple[Any, Mark]  # a value and where it was set


def overrides(sets: Sequence[str], axes: Sequence[str], tasks: Sequence[Task] = ()) -> dict[str, Setting]:
    """Settings by dotted path, of `--set A.B=VALUE` each.

    Args:
        axes: the factors of the study.
        tasks: that the study names.

    Raises:
        InvalidFile: no such setting, a factor of the study, or one set twice.
    """
    found: dict[str, Setting] = {}
    for text in sets:
        dotted, setting = _override(text, axes, tasks)
        if dotted in found:
            raise _wrong(text, f"{found[dotted][1]} sets it too; keep one of the two")
        found[dotted] = setting
    return found


def _override(text: str, axes: Sequence[str], tasks: Sequence[Task]) -> tuple[str, Setting]:
    dotted, equals, value = text.partition("=")
    if dotted not in leaves():
        raise _wrong(text, unknown(dotted, tasks) if dotted.strip() else "expected SETTING=VALUE")
    if not equals or not value.strip():
        raise _wrong(text, f"expected a value, such as --set {dotted}=VALUE")
    if dotted in axes:
        raise _wrong(text, f"'{dotted}' is a factor of this study; select cells with --only {dotted}=VALUE")
    return dotted, (_value("--set", text, value), Mark(f"--set {text}"))


def wanted(
    only: Sequence[str], axes: Sequence[str], cells: Iterable[Mapping[str, Setting]]
) -> dict[str, list[Scalar]]:
    """The wanted values of each factor, from `--only FACTOR=VALUE[,VALUE]`; several of one factor add up.

    A factor's short name will do, such as `shard` for `parallel.shard`.

    Raises:
        UserError: no such factor, or no cell with this value.
    """
    cells = list(cells)
    found: dict[str, list[Scalar]] = {}
    for text in only:
        axis, equals, values = text.partition("=")
        axis = _factor(text, axis, axes)
        if not equals or not values.strip():
            raise UserError(f"--only {text}: expected a value, such as --only {axis}=VALUE")
        if values.startswith("["):
            raise UserError(
                f"--only {text}: write several values without brackets: --only {axis}=VALUE,VALUE"
            )
        present = {str(cell[axis][0]): cell[axis][0] for cell in cells if axis in cell}
        picked = [str(_value("--only", text, value)) for value in values.split(",")]
        if absent := [value for value in picked if value not in present]:
            known = did_you_mean(absent[0], list(present))
            raise UserError(f"--only {text}: no cell has {axis} = '{absent[0]}' {known}")
        found.setdefault(axis, []).extend(present[value] for value in picked)
    return found


def _factor(text: str, axis: str, axes: Sequence[str]) -> str:
    """The factor that a name or a short name means."""
    if len(meant := short_for(axis, axes)) == 1:
        return meant[0]
    if len(meant) > 1:
        raise UserError(f"--only {text}: '{axis}' could mean {' or '.join(meant)}")
    if not axes:
        raise UserError(f"--only {text}: this study has no factors; it is one run")
    known = did_you_mean(axis, axes, nearest(axis, axes))
    raise UserError(f"--only {text}: '{axis}' is not a factor of this study {known}")


def _value(option: str, text: str, value: str) -> Any:
    """The value as a study would have it."""
    if value.lstrip().startswith("#"):
        raise _wrong(text, "a value that starts with # is a comment in YAML; put it in quotes", option)
    try:
        return parse(value or '""', option).data
    except InvalidFile as error:
        raise _wrong(text, error.problems[0].text, option) from error


def _wrong(text: str, problem: str, option: str = "--set") -> InvalidFile:
    return InvalidFile([Problem(Mark(f"{option} {text}"), problem)])
