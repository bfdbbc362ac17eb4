"""Translates pydantic's errors into FILE:LINE:COL, what is wrong, and how to fix it."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError

from model.record import backends
from model.record.config import Mismatch, RunConfig
from model.record.errors import did_you_mean
from runner.inputs.document import Document, InvalidFile, KeyPath, Problem, look_alike
from runner.inputs.settings import leaves, nearest

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

Model = TypeVar("Model", bound=BaseModel)
# Sections with values of axes, which are a union of types.
_SECTIONS_OF_VALUES = ("matrix", "zip", "exclude", "rules", "scales", "baseline", "reported")
_BRANCHES = ("str", "int", "float", "bool")
_BACKENDS = ("attention", "backend", "backends")  # keys whose value names some


def validated(
    document: Document,
    kind: type[Model],
    advice: Callable[[KeyPath], str] = lambda _place: "",
    unfit: Callable[[KeyPath], Container[str]] = lambda _place: (),
) -> Model:
    """Validate a document against its frozen type.

    Args:
        advice: what to add to the error about an unknown key.
        unfit: keys that are valid there, but would be refused later.

    Raises:
        InvalidFile: lists all problems, each with its position.
    """
    if not isinstance(document.data, dict):
        valid = ", ".join(kind.model_fields)
        text = f"expected keys and values, got {as_yaml(document.data)} (keys: {valid})"
        raise InvalidFile.at(document.mark(()), text)
    try:
        return kind.model_validate(document.data)
    except ValidationError as error:
        problems = []
        for detail in error.errors(include_url=False):
            # A union's branch is a step in `loc` but not a key in the document.
            place: KeyPath = ()
            for step in (*detail["loc"], str(detail.get("ctx", {}).get("discriminator", "")).strip("'")):
                place = (*place, step) if (*place, step) in document.marks else place
            name = next((str(step) for step in reversed(place) if isinstance(step, str)), "")
            more = advice(place) if detail["type"] == "extra_forbidden" else ""
            text = explain(kind, detail, name, unfit(place) if place else ())
            problems.append(Problem(document.mark(place), text + more))
        raise InvalidFile(problems) from error


def explain(kind: type[BaseModel], detail: ErrorDetails, name: str, unfit: Container[str] = ()) -> str:
    """Describe one validation error, with the valid choices if there is a fixed list.

    Args:
        name: of the key that the value was given for.
        unfit: as for `validated`.
    """
    *parents, last = (*detail["loc"],) or ("",)
    context = detail.get("ctx", {})
    if detail["type"] == "extra_forbidden":
        keys = [key for key in _keys(kind, parents) if key not in unfit]
        choices = did_you_mean(str(last), keys, nearest(str(last), keys))
        return f"unknown key '{last}' {choices}{look_alike(str(last))}"
    if detail["type"] == "missing":
        return f"missing key '{last}'"
    if detail["type"] in ("union_tag_invalid", "union_tag_not_found"):
        # The tags of a union's members are the values of their first fields.
        tags = [str(tag) for model in _models_at(kind, [*parents, last]) for tag in _tag_values(model)]
        key = str(context["discriminator"]).strip("'")
        if "tag" not in context:
            return f"missing key '{key}' in '{last}' (valid: {', '.join(tags)})"
        return f"unknown {key} '{context['tag']}' {did_you_mean(str(context['tag']), tags)}"
    if detail["type"] == "value_error":
        message = detail["msg"].removeprefix("Value error, ")
        return message[:1].lower() + message[1:]
    if detail["type"] == "string_type" and isinstance(detail["input"], str | int | float):
        if last in _BACKENDS:
            every = "all, " if last == "backends" else ""
            return f"'{name}' must name a backend (valid: {every}{', '.join(backends.names())})"
        if why := _error_with(kind, detail, as_yaml(detail["input"])):
            return f"'{name}' must be text: {why}"
    return f"'{name}' {_requirement(kind, detail, name)}, got {as_yaml(detail['input'])}"


def _error_with(kind: type[BaseModel], detail: ErrorDetails, value: Any) -> str:
    """What would be wrong with another value in the place of this one; empty if nothing."""
    place = detail["loc"]
    if {"matrix", "zip"} & {*place[:-1]} and isinstance(place[-1], str):
        kind, place = RunConfig, (*place[-1].split("."),)
    last = place[-1]
    for model in _models_at(kind, place[:-1]):
        if last not in model.model_fields:
            continue
        try:
            model.model_validate({last: value})
        except ValidationError as error:
            for other in error.errors(include_url=False):
                cause = other.get("ctx", {}).get("error")
                together = cause.settings if isinstance(cause, Mismatch) else ()
                if other["loc"][:1] == (last,) or last in together:
                    return explain(model, other, str(last))
    return ""


def _requirement(kind: type[BaseModel], detail: ErrorDetails, name: str) -> str:
    """What a value must be, in terms of YAML rather than Python."""
    message, got = detail["msg"], detail["input"]
    first, last = (detail["loc"][0], str(detail["loc"][-1])) if detail["loc"] else ("", "")
    if first in _SECTIONS_OF_VALUES and (last in _BRANCHES or last.startswith("list[")):
        text = "can only take values that are text, a finite number, true or false"
        apart = isinstance(got, dict) and next(iter(got), None)
        return f"{text}; write a separate axis for each, such as {name}.{apart}: [...]" if apart else text
    scalar = isinstance(got, str | int | float)
    match detail["type"]:
        case "list_type" if {"matrix", "zip"} & {*detail["loc"][:-1]} and isinstance(got, dict) and got:
            axis = next((f"{last}.{key}" for key in got if f"{last}.{key}" in leaves()), "SECTION.SETTING")
            return f"must be a list; write an axis as one dotted name, such as {axis}"
        case "list_type":
            of_axis = bool({"matrix", "zip"} & {*detail["loc"][:-1]})
            fits = scalar and not _error_with(kind, detail, got if of_axis else [got])
            return f"must be a list, such as [{as_yaml(got)}]" if fits else "must be a list"
        case "too_short" if got in ([], {}):
            return "must have at least 1 item"
        case "dict_type" | "model_type" | "model_attributes_type":
            keys = _keys(kind, detail["loc"])
            return "must have keys and values of its own" + (f" (keys: {', '.join(keys)})" if keys else "")
        case "string_type":
            return "must be text" + (f', such as "{as_yaml(got)}" in quotes' if scalar else "")
        case "int_type" | "int_parsing" | "int_from_float":
            number = _as_number(got)
            fits = number is not None and number.is_integer() and not _error_with(kind, detail, int(number))
            return "must be a whole number" + (f": write {number:.0f}" if fits else "")
        case "float_type" | "float_parsing":
            number = _as_number(got)
            fits = number is not None and not _error_with(kind, detail, number)
            return "must be a number" + (f": write {repr(number).removesuffix('.0')}" if fits else "")
        case "bool_type" | "bool_parsing":
            return "must be true or false"
    return in_plain_words(message)


def in_plain_words(message: str) -> str:
    """A message of pydantic's in terms of what users write."""
    words = message.removeprefix("Value error, ")
    return words.replace("Input should be", "must be").replace("String should", "must")


def _as_number(given: Any) -> float | None:
    """The number that a text such as `1/16` or `8` stands for; None of what stands for none."""
    if not isinstance(given, str | float):
        return None
    try:
        return float(Fraction(given))
    except (ValueError, ArithmeticError):  # no number, infinite, or divided by zero
        return None


def as_yaml(value: Any) -> str:
    """A value's repr, at most 60 characters; `true`, `false` and `nothing` as YAML has them."""
    text = "nothing" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _keys(kind: type[BaseModel], parents: Sequence[str | int]) -> list[str]:
    """The valid keys of the mapping at this path."""
    return list(dict.fromkeys(name for model in _models_at(kind, parents) for name in model.model_fields))


def _models_at(kind: type[BaseModel], place: Sequence[str | int]) -> list[type[BaseModel]]:
    """The model types allowed at this path; a step that is not a field may be a union member's tag."""
    models: list[type[BaseModel]] = [kind]
    for step in place:
        if fields := [model.model_fields[str(step)] for model in models if str(step) in model.model_fields]:
            models = [inner for field in fields for inner in _models_in(field.annotation)]
        else:
            models = [model for model in models if step in _tag_values(model)] or models
    return models


def _tag_values(model: type[BaseModel]) -> tuple[Any, ...]:
    annotation = next(iter(model.model_fields.values())).annotation
    return get_args(annotation) if get_origin(annotation) is Literal else ()


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    """The model types inside list[...], dict[str, ...], Annotated[...] and unions."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [inner for argument in get_args(annotation) for inner in _models_in(argument)]
