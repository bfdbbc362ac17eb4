"""From pydantic's errors to FILE:LINE:COL, what is wrong and what would be right."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from model.errors import did_you_mean
from runner.document import Document, KeyPath
from runner.errors import InvalidFile, Problem

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

Model = TypeVar("Model", bound=BaseModel)


def validated(document: Document, kind: type[Model]) -> Model:
    """Turn a document into its frozen type.

    Raises:
        InvalidFile: with every problem, each at its own position.
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
    # A union's branches appear in loc as type names, which are not part of the document.
    path: KeyPath = tuple(detail["loc"])
    return Problem(document.mark(path), explain(kind, detail))


def explain(kind: type[BaseModel], detail: ErrorDetails) -> str:
    """One validation error in words, with the valid choices where they are a list."""
    *parents, name = (*detail["loc"],) or ("",)
    if detail["type"] == "extra_forbidden":
        return f"unknown key '{name}' {did_you_mean(str(name), _keys(kind, parents))}"
    if detail["type"] == "missing":
        return f"missing key '{name}'"
    message = detail["msg"].removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    if detail["type"] == "value_error":
        return message
    return f"'{name}': {message}, got {shown(detail['input'])}"


def shown(value: Any) -> str:
    """A value as a person would recognise it, cut short."""
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _keys(kind: type[BaseModel], parents: list[str | int]) -> list[str]:
    """The valid keys of the mapping at this place of the type."""
    here: Any = kind
    for step in parents:
        if isinstance(here, type) and issubclass(here, BaseModel) and step in here.model_fields:
            here = _inner(here.model_fields[str(step)].annotation)
    return list(here.model_fields) if isinstance(here, type) and issubclass(here, BaseModel) else []


def _inner(annotation: Any) -> Any:
    """The model type inside list[...], dict[str, ...] and unions."""
    if get_origin(annotation) in (list, dict, Union, types.UnionType):
        inner = [_inner(argument) for argument in get_args(annotation) if argument is not types.NoneType]
        return inner[-1]
    return annotation
