"""Dotted paths into the run configuration: which exist, and how nested mappings become them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from pydantic import BaseModel

from model.config import RunConfig
from runner.spec.document import KeyPath

Scalar = str | int | float | bool


@cache
def leaves(kind: type[BaseModel] = RunConfig, prefix: str = "") -> tuple[str, ...]:
    """Every dotted path that holds a value: `attention`, `model.dim`, ..."""
    found: list[str] = []
    for name, info in kind.model_fields.items():
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            found += leaves(info.annotation, f"{prefix}{name}.")
        else:
            found.append(prefix + name)
    return tuple(found)


def flatten(value: Any, path: KeyPath, prefix: str = "") -> Iterator[tuple[str, Any, KeyPath]]:
    """Give (dotted path, value, place in the document) of each value in a nested or dotted mapping."""
    for key, item in value.items():
        if isinstance(item, dict):
            yield from flatten(item, (*path, key), f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", item, (*path, key)


def nest(flat: dict[str, Any]) -> dict[str, Any]:
    """The nested mapping of dotted paths."""
    result: dict[str, Any] = {}
    for dotted, value in flat.items():
        *parents, name = dotted.split(".")
        into = result
        for parent in parents:
            into = into.setdefault(parent, {})
        into[name] = value
    return result
