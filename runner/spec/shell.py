"""Text that reaches a batch script: which characters are refused, so that the rest is inert once quoted."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from model.errors import UserError

# Line breaks of any kind start a new line of a script; the others hide on a terminal what a script really
# says, or cannot be written to a file at all.
_REFUSED = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_SETTING = re.compile(r"[\w.,:;=+/@%()\[\]*&|!~ -]*", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OPTION = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
# What the launcher tells sbatch itself: given twice, the later one would win.
_OURS = frozenset({
    "array", "comment", "error", "job-name", "no-requeue", "open-mode", "output", "parsable", "requeue",
    "signal", "test-only", "wait", "wrap",
})  # fmt: skip


def inert(text: str) -> str:
    """Text without control characters. Raises ValueError."""
    if match := _REFUSED.search(text):
        raise ValueError(
            f"a control character (U+{ord(match[0]):04X}) is not allowed in what reaches a batch script"
        )
    return text


def setting(text: str) -> str:
    """A value of sbatch or srun. Raises ValueError."""
    if not _SETTING.fullmatch(inert(text)):
        raise ValueError(
            "only letters, digits, spaces and .,:;=+/@%()[]*&|!~- are allowed in a scheduler's setting"
        )
    return text


def literal(text: str) -> str:
    """A word that a program gets as it stands. Raises ValueError where a shell was meant to expand it."""
    if "$" in inert(text) or "`" in text or text.startswith("~"):
        raise ValueError(f"'{text}' is passed on as it stands, nothing in it is expanded: write it out")
    return text


def place(text: str) -> str:
    """A name or path in a container's setting. Raises ValueError."""
    if literal(text).startswith("-"):
        raise ValueError(f"'{text}' would be read as an option: a name or path is needed")
    if ".." in re.split(r"[/:,]", text):
        raise ValueError(f"'{text}' has a '..' in it: write the absolute path")
    return text


def single(text: str) -> str:
    """One place, where several are joined by commas. Raises ValueError."""
    if "," in place(text):
        raise ValueError(f"'{text}' has a comma in it: give each as an item of its own")
    return text


def _variable(text: str) -> str:
    if not _VARIABLE.fullmatch(text):
        raise ValueError(f"{text!r} is no name of an environment variable: letters, digits and _ only")
    return text


def _option(text: str) -> str:
    if not _OPTION.fullmatch(text):
        raise ValueError(f"{text!r} is no option of sbatch: its name without dashes in front is needed")
    if text.replace("_", "-") in _OURS:
        raise ValueError(f"'{text}' is set by the launcher, like {', '.join(sorted(_OURS - {text}))}")
    return text


Inert = Annotated[str, AfterValidator(inert)]
Setting = Annotated[str, Field(min_length=1), AfterValidator(setting)]
Word = Annotated[str, Field(min_length=1), AfterValidator(literal)]
Place = Annotated[str, Field(min_length=1), AfterValidator(place)]
Single = Annotated[str, Field(min_length=1), AfterValidator(single)]
Variable = Annotated[str, AfterValidator(_variable)]
Option = Annotated[str, AfterValidator(_option)]


def check_path(path: object) -> None:
    """Make sure that a path can stand in a batch script.

    Raises:
        UserError: it has a line break or another control character in it.
    """
    try:
        inert(str(path))
    except ValueError as error:
        raise UserError(f"{str(path)!r}: {error}; choose another place with --root") from error
