"""Errors of the orchestration; see model.errors for the tree that they hang on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from model.errors import AssayError, UserError

if TYPE_CHECKING:
    from runner.tasks import Task


@dataclass(frozen=True, order=True)
class Mark:
    """Where something was written: `FILE:LINE:COL`, counted from 1, or a command-line option."""

    source: str
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        """`FILE:LINE:COL`, as editors and terminals make it a link."""
        return f"{self.source}:{self.line}:{self.column}" if self.line else self.source


@dataclass(frozen=True, order=True)
class Problem:
    """One thing that is wrong, and what would be right."""

    mark: Mark
    text: str

    def __str__(self) -> str:
        return f"{self.mark}: {self.text}"


class InvalidFile(UserError):
    """A study or profile is wrong, in one or more places; the text has one line for each."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = sorted(set(problems))
        super().__init__("\n".join(map(str, self.problems)))


class SchedulerError(AssayError):
    """The scheduler refused a job or cannot be reached; the text has its own words."""

    exit_code = 3


class SubmitLimit(SchedulerError):
    """No more jobs of this user may wait in Slurm's queue for now.

    Attributes:
        left: what is not submitted; nobody has claimed it.
    """

    def __init__(self, message: str, left: Sequence[Task] = ()) -> None:
        super().__init__(message)
        self.left = left


class SubmitUnknown(SchedulerError):
    """Whether Slurm has taken an array is not known."""
