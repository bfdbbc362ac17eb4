"""Reads `--set` and `--only`: settings for all cells, and which cells are wanted."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from model.record.errors import UserError, did_you_mean
from runner.inputs.document import InvalidFile, Mark, parse
from runner.inputs.settings import Scalar, Setting, leaves, nearest, settings_for, unknown


def overrides(sets: Sequence[str], axes: Sequence[str], tasks: Sequence[str] = ()) -> dict[str, Setting]:
    """Settings by dotted path, of `--set A.B=VALUE` each.

    Args:
        axes: the factors of the study.
        tasks: that the study names.

    Raises:
        InvalidFile: no such setting, a factor of the study, or one set twice.
    """
    settings: dict[str, Setting] = {}
    for text in sets:
        dotted, equals, value = text.partition("=")
        if dotted not in leaves():
            raise _refusal(text, unknown(dotted, tasks) if dotted.strip() else "expected SETTING=VALUE")
        if not equals or not value.strip():
            raise _refusal(text, f"expected a value, such as --set {dotted}=VALUE")
        if dotted in axes:
            advice = f"select cells with --only {dotted}=VALUE"
            raise _refusal(text, f"'{dotted}' is a factor of this study; {advice}")
        parsed = _parse_value("--set", text, value)
        if dotted in settings:
            raise _refusal(text, f"{settings[dotted][1]} sets it too; keep one of the two")
        settings[dotted] = parsed, Mark(f"--set {text}")
    return settings


def usable_advice(advice: str, present: Mapping[str, Iterable[Any]]) -> str:
    """Advice as it can be followed: `--set` of a factor is refused, and `--only` selects a value of it.

    Args:
        present: the values by factor that cells have; where none has that of the advice, the study must.
    """

    def followed(option: re.Match[str]) -> str:
        axis, value = option[1], option[2]
        if axis not in present:
            return option[0]
        is_present = any(meant for _, meant in matching_values(value, present[axis]))
        return f"--only {axis}={value}" if is_present else f"{axis}={value} in the study"

    return re.sub(r"--set ([\w.]+)=([^\s,;]+)", followed, advice)


def selected_values(
    only: Sequence[str], axes: Sequence[str], cells: Iterable[Mapping[str, Setting]]
) -> dict[str, list[Scalar]]:
    """The wanted values of each factor, from `--only FACTOR=VALUE[,VALUE]`; several of one factor add up.

    A factor's short name will do, such as `shard` for `parallel.shard`. Values are as in `matching_values`.

    Raises:
        InvalidFile: a value is not YAML.
        UserError: no such factor, or no cell with this value.
    """
    cells = list(cells)
    selected: dict[str, list[Scalar]] = {}
    for text in only:
        name, equals, values = text.partition("=")
        if not axes:
            raise UserError(f"--only {text}: this study has no factors; it is one run")
        factors = settings_for(name, axes)
        if not factors:
            choices = did_you_mean(name, axes, nearest(name, axes))
            raise UserError(f"--only {text}: '{name}' is not a factor of this study {choices}")
        if len(factors) > 1:
            raise UserError(f"--only {text}: '{name}' could mean {' or '.join(factors)}")
        axis = factors[0]
        if not equals or not values.strip():
            raise UserError(f"--only {text}: expected a value, such as --only {axis}=VALUE")
        present = [cell[axis][0] for cell in cells if axis in cell]
        for part, meant in matching_values(values, present):
            if not meant and values.startswith("["):
                example = f"--only {axis}=VALUE,VALUE"
                raise UserError(f"--only {text}: write several values without brackets: {example}")
            if not meant:
                got = _parse_value("--only", text, part)
                choices = did_you_mean(str(got), list(dict.fromkeys(map(str, present))))
                raise UserError(f"--only {text}: no cell has {axis} = '{got}' {choices}")
            selected.setdefault(axis, []).extend(meant)
    return selected


def matching_values(values: str, present: Iterable[Any]) -> Iterator[tuple[str, list[Any]]]:
    """The parts of `VALUE[,VALUE]`, each with the values that it names; none if no value is meant.

    A value may have commas: a part is the longest text that names one. Quotes are those of YAML. Numbers are
    compared by value, and texts without regard to case unless one is equal to the letter.
    """
    exact, alike = dict[str, Any](), dict[str | float, list[Any]]()
    for value in present:
        if str(value) not in exact:
            exact[str(value)] = value
            number = isinstance(value, int | float) and not isinstance(value, bool)
            alike.setdefault(float(value) if number else str(value).lower(), []).append(value)
    most = 1 + max((text.count(",") for text in exact), default=0)

    def meant(part: str) -> list[Any]:
        if part in exact:
            return [exact[part]]
        with suppress(ValueError):
            return alike.get(part.lower()) or alike.get(float(part), [])
        return alike.get(part.lower(), [])

    parts = values.split(",")
    while parts:
        for length in range(min(most, len(parts)), 0, -1):
            part = ",".join(parts[:length])
            if not (values_meant := meant(part)):
                with suppress(InvalidFile):
                    values_meant = meant(str(parse(part or '""', "--only").data))
            if values_meant or length == 1:
                yield part, values_meant
                del parts[:length]
                break


def _parse_value(option: str, text: str, value: str) -> Any:
    """The value as a study would have it."""
    if value.lstrip().startswith("#"):
        raise _refusal(text, "a value that starts with # is a comment in YAML; put it in quotes", option)
    try:
        return parse(value or '""', option).data
    except InvalidFile as error:
        raise _refusal(text, error.problems[0].text, option) from error


def _refusal(text: str, problem: str, option: str = "--set") -> InvalidFile:
    return InvalidFile.at(Mark(f"{option} {text}"), problem)
