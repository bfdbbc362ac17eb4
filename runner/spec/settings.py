"""Dotted paths into the run configuration, and conversion between them and nested mappings."""

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
    """The dotted paths of all settings: `attention`, `model.dim`, ..."""
    found: list[str] = []
    for name, info in kind.model_fields.items():
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            found += leaves(info.annotation, f"{prefix}{name}.")
        else:
            found.append(prefix + name)
    return tuple(found)


def flatten(value: Any, path: KeyPath, prefix: str = "") -> Iterator[tuple[str, Any, KeyPath]]:
    """Yield (dotted path, value, document path) for each value of a nested or dotted mapping."""
    for key, item in value.items():
        if isinstance(item, dict):
            yield from flatten(item, (*path, key), f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", item, (*path, key)


def nest(flat: dict[str, Any]) -> dict[str, Any]:
    """Turn dotted paths into a nested mapping; the inverse of `flatten`."""
    result: dict[str, Any] = {}
    for dotted, value in flat.items():
        *parents, name = dotted.split(".")
        into = result
        for parent in parents:
            into = into.setdefault(parent, {})
        into[name] = value
    return result
