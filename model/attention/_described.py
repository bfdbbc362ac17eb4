"""What a backend's file says about itself, read without importing it, which would import torch too."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True)
class Described:
    """Parts of a `Backend` that are literals: its summary, and the modules and packages it computes with."""

    summary: str
    modules: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()


@cache
def described(name: str) -> Described | None:
    """What a backend in this folder says about itself; None for others, whose file may be elsewhere."""
    path = Path(__file__).parent / f"{name}.py"
    if name.startswith("_") or not path.is_file():
        return None
    given = _keywords(ast.parse(path.read_bytes()))
    parts = {key: ast.literal_eval(given[key]) for key in ("modules", "packages") if key in given}
    return Described(summary=ast.literal_eval(given["summary"]), **parts)


def _keywords(module: ast.Module) -> dict[str, ast.expr]:
    """The keyword arguments of the call in `backend = ...(...)`."""
    for node in module.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and _named(node):
            return {each.arg: each.value for each in node.value.keywords if each.arg}
    return {}


def _named(node: ast.Assign) -> bool:
    return any(isinstance(target, ast.Name) and target.id == "backend" for target in node.targets)
