"""Translates pydantic's errors into FILE:LINE:COL, what is wrong, and how to fix it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError

from model.errors import did_you_mean
from runner.spec.document import Document, KeyPath
from runner.spec.problems import InvalidFile, Problem

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

Model = TypeVar("Model", bound=BaseModel)


def validated(document: Document, kind: type[Model]) -> Model:
    """Validate a document against its frozen type.

    Raises:
        InvalidFile: lists all problems, each with its position.
    """
    if not isinstance(document.data, dict):
        valid = ", ".join(kind.model_fields)
        problem = Problem(
            document.mark(()), f"expected keys and values, got {shown(document.data)} (keys: {valid})"
        )
        raise InvalidFile([problem])
    try:
        return kind.model_validate(document.data)
    except ValidationError as error:
        problems = [_problem(document, kind, detail) for detail in error.errors(include_url=False)]
        raise InvalidFile(problems) from error


def _problem(document: Document, kind: type[BaseModel], detail: ErrorDetails) -> Problem:
    return Problem(document.mark(_written(document, detail)), explain(kind, detail))


def _written(document: Document, detail: ErrorDetails) -> KeyPath:
    """Document path of an error. A union's branch is a step in `loc` but not a key in the document."""
    path: KeyPath = ()
    for step in detail["loc"]:
        path = (*path, step) if (*path, step) in document.marks else path
    key = str(detail.get("ctx", {}).get("discriminator", "")).strip("'")
    return (*path, key) if (*path, key) in document.marks else path


def explain(kind: type[BaseModel], detail: ErrorDetails) -> str:
    """Describe one validation error, with the valid choices if there is a fixed list."""
    *parents, name = (*detail["loc"],) or ("",)
    context = detail.get("ctx", {})
    if detail["type"] == "extra_forbidden":
        return f"unknown key '{name}' {did_you_mean(str(name), _keys(kind, parents))}"
    if detail["type"] == "missing":
        return f"missing key '{name}'"
    if detail["type"] in ("union_tag_invalid", "union_tag_not_found"):
        return _wrong_tag(str(name), context, _tags(kind, [*parents, name]))
    message = detail["msg"].removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    if detail["type"] == "value_error":
        return message
    return f"'{name}': {message}, got {shown(detail['input'])}"


def _wrong_tag(name: str, context: dict[str, Any], tags: list[str]) -> str:
    key = str(context["discriminator"]).strip("'")
    if "tag" not in context:
        return f"missing key '{key}' in '{name}' (valid: {', '.join(tags)})"
    return f"unknown {key} '{context['tag']}' {did_you_mean(str(context['tag']), tags)}"


def shown(value: Any) -> str:
    """A value's repr, at most 60 characters; `nothing` for None."""
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _keys(kind: type[BaseModel], parents: Sequence[str | int]) -> list[str]:
    """The valid keys of the mapping at this path."""
    return list(dict.fromkeys(name for model in _at(kind, parents) for name in model.model_fields))


def _tags(kind: type[BaseModel], place: Sequence[str | int]) -> list[str]:
    """The tags of a union's members: the values of their first field."""
    return [str(tag) for model in _at(kind, place) for tag in _tag_values(model)]


def _at(kind: type[BaseModel], place: Sequence[str | int]) -> list[type[BaseModel]]:
    """The model types allowed at this path; a step that is not a field may be a union member's tag."""
    here: list[type[BaseModel]] = [kind]
    for step in place:
        if fields := [model.model_fields[str(step)] for model in here if str(step) in model.model_fields]:
            here = [inner for field in fields for inner in _models(field.annotation)]
        else:
            here = [model for model in here if step in _tag_values(model)] or here
    return here


def _tag_values(model: type[BaseModel]) -> tuple[Any, ...]:
    annotation = next(iter(model.model_fields.values())).annotation
    return get_args(annotation) if get_origin(annotation) is Literal else ()


def _models(annotation: Any) -> list[type[BaseModel]]:
    """The model types inside list[...], dict[str, ...], Annotated[...] and unions."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [inner for argument in get_args(annotation) for inner in _models(argument)]
