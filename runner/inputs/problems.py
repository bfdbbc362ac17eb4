"""Errors in hand-written files: where they are, how to fix them, and which characters no file may have."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field

from model.record.errors import UserError
from model.record.units import visible

MOST_SHOWN = 20
_REACH = 60  # characters shown on each side of an error in a long line

# Control characters, line breaks that only some programs honor, characters that make a terminal show a text
# in another order than it is read (Boucher & Anderson 2021, arXiv:2111.00169), halves of surrogate pairs.
_HIDDEN = r"\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
HIDDEN = re.compile(f"[{_HIDDEN}]")
HIDDEN_IN_TEXT = re.compile(f"(?![\t\n])[{_HIDDEN}]")  # a text may have several lines


@dataclass(frozen=True, order=True)
class Mark:
    """A position: `FILE:LINE:COL`, counted from 1, or a command-line option.

    Attributes:
        text: the whole line.
    """

    source: str
    line: int | None = None
    column: int | None = None
    text: str = field(default="", compare=False, repr=False)

    def __str__(self) -> str:
        """`FILE:LINE:COL`, the form that editors and terminals turn into a link."""
        return f"{self.source}:{self.line}:{self.column}" if self.line else self.source

    @property
    def excerpt(self) -> str:
        """The line with a caret under the position; empty if there is nothing to show."""
        if not self.text.strip() or not self.line or not self.column:
            return ""
        first = max(0, self.column - 1 - _REACH)
        before = visible(self.text[first : self.column - 1])
        after = visible(self.text[self.column - 1 : self.column - 1 + _REACH])
        gutter = " " * len(str(self.line))
        return f"  {self.line} | {before}{after}\n  {gutter} | {' ' * width(before)}^"


@dataclass(frozen=True, order=True)
class Problem:
    """One error and its fix."""

    mark: Mark
    text: str

    def __str__(self) -> str:
        return f"{self.mark}: {self.text}"

    def shown(self) -> str:
        """The error, and below it the line that it is about."""
        return "\n".join(filter(None, (str(self), self.mark.excerpt)))


class InvalidFile(UserError):
    """A study or profile has errors; the message shows each with its line."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = sorted(set(problems))
        shown = [problem.shown() for problem in self.problems[:MOST_SHOWN]]
        if more := len(self.problems) - len(shown):
            shown.append(f"and {more:,} more")
        super().__init__("\n".join(shown))


def code_point(character: str) -> str:
    """A character's code point, such as U+0007."""
    return f"U+{ord(character):04X}"


def look_alike(word: str) -> str:
    """Name the first letter that is not ASCII, which may look like another; empty if there is none."""
    found = next((letter for letter in word if not letter.isascii()), None)
    if found is None:
        return ""
    return f"; its letter '{found}' is {code_point(found)}, {unicodedata.name(found, 'without a name')}"


def width(text: str) -> int:
    """Columns that a terminal needs for a text."""
    return sum(
        0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        for letter in text
    )
