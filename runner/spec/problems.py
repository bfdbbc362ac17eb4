"""Errors in hand-written files: where they are, and how to fix them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from model.errors import UserError


@dataclass(frozen=True, order=True)
class Mark:
    """A position: `FILE:LINE:COL`, counted from 1, or a command-line option."""

    source: str
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        """`FILE:LINE:COL`, the form that editors and terminals turn into a link."""
        return f"{self.source}:{self.line}:{self.column}" if self.line else self.source


@dataclass(frozen=True, order=True)
class Problem:
    """One error and its fix."""

    mark: Mark
    text: str

    def __str__(self) -> str:
        return f"{self.mark}: {self.text}"


class InvalidFile(UserError):
    """A study or profile has errors; the message has one line for each."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = sorted(set(problems))
        super().__init__("\n".join(map(str, self.problems)))
