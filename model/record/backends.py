"""Which attention backends there are, and what their files say of themselves. Nothing is imported.

Names are those of the files in `model/attention`, and of entry points in the group `assay.attention`.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Literal

from model import modules
from model.record.errors import UserError, did_you_mean

ENTRY_POINT_GROUP = "assay.attention"
_FOLDER = Path(__file__).parents[1] / "attention"


@cache
def names() -> tuple[str, ...]:
    """Every backend's name, sorted."""
    return tuple(sorted({*modules(_FOLDER), *foreign()}))


@cache
def foreign() -> tuple[str, ...]:
    """The names that other packages register."""
    return tuple(point.name for point in entry_points(group=ENTRY_POINT_GROUP))


def check_name(name: str) -> None:
    """Check that there is a backend of this name.

    Raises:
        UserError: there is none; the text lists those that there are.
    """
    if name not in names():
        raise UserError(f"unknown attention backend '{name}' {did_you_mean(name, names())}")


def is_foreign(name: str) -> bool:
    """Whether the backend comes from another package."""
    return name in foreign()


def entry_module(name: str) -> str:
    """The module that defines another package's backend; empty if no entry point names it."""
    return next((point.module for point in entry_points(group=ENTRY_POINT_GROUP, name=name)), "")


def entry_point(name: str) -> EntryPoint:
    """The entry point of another package's backend.

    Raises:
        UserError: the name is also another backend's.
    """
    first, *others = entry_points(group=ENTRY_POINT_GROUP, name=name)
    owners = [f"package {point.dist.name}" for point in (first, *others) if point.dist]
    if name in modules(_FOLDER):
        owners = ["this project", *owners]
    if others or "this project" in owners:
        listed = " and ".join(owners)
        raise UserError(
            f"several attention backends are named '{name}', of {listed}: uninstall or rename one"
        )
    return first


# What a call keeps for its backward pass beside queries, keys, values and output: every weight in float32;
# keys and values once for each head of queries; or one more tensor of the output's size.
Keeps = Literal["", "weights", "copies", "output"]
# What a call holds only while it runs: in 16 bits its output, then the gradient of its queries, in float32;
# and where heads share keys, the gradients of keys and values of each head in float32.
Holds = Literal["", "float32"]


@cache
def imports_torch(name: str) -> bool:
    """Whether importing a backend's file imports torch, which takes seconds; so it is assumed of others'."""
    path = _FOLDER / f"{name}.py"
    modules_imported = {
        alias.name
        for node in (ast.parse(path.read_bytes()).body if path.is_file() else ())
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    return is_foreign(name) or "torch" in modules_imported


@dataclass(frozen=True)
class Described:
    """Parts of a `Backend` that are literals: its summary, references, memory, and what it computes with.

    Attributes:
        moves: whether it gives a formula of the bytes that a call moves.
    """

    summary: str
    references: tuple[str, ...] = ()
    keeps: Keeps = ""
    holds: Holds = ""
    modules: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    moves: bool = False


@cache
def described(name: str) -> Described | None:
    """What a backend of this project says about itself; None for others, whose file may be elsewhere.

    Raises:
        UserError: its file says nothing of the kind.
    """
    path = _FOLDER / f"{name}.py"
    if name.startswith("_") or not path.is_file():
        return None
    calls = [
        node.value
        for node in ast.parse(path.read_bytes()).body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        if any(isinstance(target, ast.Name) and target.id == "backend" for target in node.targets)
    ]
    if len(calls) != 1:
        raise UserError(f"{path} must define `backend = Backend(...)` once: it does so {len(calls)} times")
    given = {keyword.arg: keyword.value for keyword in calls[0].keywords}
    if "summary" not in given:
        raise UserError(f"{path}:{calls[0].lineno}: `Backend(...)` lacks `summary`, one line for tables")
    literals = ("references", "keeps", "holds", "modules", "packages")
    parts = {key: ast.literal_eval(given[key]) for key in literals if key in given}
    return Described(summary=ast.literal_eval(given["summary"]), moves="moves" in given, **parts)
