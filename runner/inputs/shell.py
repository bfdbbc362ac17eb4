"""Validates text that goes into a batch script: rejects what quoting alone would not make safe."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator, Field

from model.record.errors import UserError
from runner.inputs.document import HIDDEN, code_point

_SETTING = re.compile(r"[\w.,:;=+/@%()\[\]*&|!~ -]*", re.ASCII)
_OPTION = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
# Options that the launcher sets itself: of two values for one option, the later would win.
_OURS = frozenset({
    "array", "error", "job-name", "no-requeue", "open-mode", "output", "parsable", "requeue", "signal",
    "test-only", "wait", "wrap",
})  # fmt: skip


_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
# A `$$`, a `$NAME` or `${NAME}`, or a dollar sign that is neither.
_DOLLAR = re.compile(rf"\$(?:(?P<escaped>\$)|(?P<name>{_NAME})|\{{(?P<braced>{_NAME})\}}|)")


def inert(text: str) -> str:
    """Reject control characters. Raises ValueError."""
    if match := HIDDEN.search(text):
        raise ValueError(
            f"a control character ({code_point(match[0])}) is not allowed in text for a batch script"
        )
    return text


def setting(text: str) -> str:
    """Check the value of an sbatch or srun option. Raises ValueError."""
    if not _SETTING.fullmatch(inert(text)):
        raise ValueError(
            "only letters, digits, spaces and .,:;=+/@%()[]*&|!~- are allowed in a Slurm setting"
        )
    return text


def literal(text: str) -> str:
    """Check a word that is passed on verbatim. Raises ValueError if it expects shell expansion."""
    if "$" in inert(text) or "`" in text or text.startswith("~"):
        raise ValueError(f"'{text}' is passed on verbatim, without shell expansion: write it out in full")
    return text


def expandable(text: str) -> str:
    """Check a text in which $NAME and ${NAME} are expanded where a run starts. Raises ValueError."""
    if not all(match.lastgroup for match in _DOLLAR.finditer(inert(text))):
        raise ValueError(f"'{text}': only $NAME and ${{NAME}} are expanded; write $$ for a dollar sign")
    if "`" in text or text.startswith("~"):
        raise ValueError(f"'{text}': only $NAME and ${{NAME}} are expanded: write it out in full")
    return text


def expanded(text: str, environment: Mapping[str, str] = os.environ) -> str:
    """An `expandable` text with the values of its variables. Raises ValueError if one is not set."""

    def value(match: re.Match[str]) -> str:
        name = match["name"] or match["braced"]
        if name and name not in environment:
            raise ValueError(f"'{text}': {name} is not set here")
        return environment[name] if name else "$"

    return _DOLLAR.sub(value, text)


def quoted(text: str) -> str:
    """An `expandable` text as one word of a batch script, whose shell expands the variables."""
    if "$" not in text:
        return shlex.quote(text)

    def value(match: re.Match[str]) -> str:
        name = match["name"] or match["braced"]
        return f"${{{name}?is not set in the job}}" if name else r"\$"

    escaped = re.sub(r'([\\"])', r"\\\1", text)
    return f'"{_DOLLAR.sub(value, escaped)}"'


def place(text: str) -> str:
    """Check a name or path in a container setting. Raises ValueError."""
    if literal(text).startswith("-"):
        raise ValueError(f"'{text}' would be read as an option: give a name or path")
    if ".." in re.split(r"[/:,]", text):
        raise ValueError(f"'{text}' contains '..': write the absolute path")
    return text


def single(text: str) -> str:
    """Check an item of a list that will be joined by commas. Raises ValueError."""
    if "," in place(text):
        raise ValueError(f"'{text}' contains a comma: make each part a separate list item")
    return text


def _variable(text: str) -> str:
    if not re.fullmatch(_NAME, text):
        raise ValueError(f"{text!r} is not a valid environment variable name: use letters, digits and _")
    return text


def _option(text: str) -> str:
    if not _OPTION.fullmatch(text):
        raise ValueError(f"{text!r} is not an sbatch option: give its name without leading dashes")
    if "clusters".startswith(text):
        raise ValueError(f"'{text}' is not allowed: submit to another cluster from its own login node")
    if any(ours.startswith(text.replace("_", "-")) for ours in _OURS):  # sbatch takes the first letters too
        raise ValueError(f"'{text}' is set by the launcher, as are {', '.join(sorted(_OURS - {text}))}")
    return text


Inert = Annotated[str, AfterValidator(inert)]
Expanded = Annotated[str, AfterValidator(expandable)]
Setting = Annotated[str, Field(min_length=1), AfterValidator(setting)]
Word = Annotated[str, Field(min_length=1), AfterValidator(expandable)]
Place = Annotated[str, Field(min_length=1), AfterValidator(place)]
Single = Annotated[str, Field(min_length=1), AfterValidator(single)]
Variable = Annotated[str, AfterValidator(_variable)]
Option = Annotated[str, AfterValidator(_option)]


def check_path(path: object) -> None:
    """Check that a path is safe in a batch script.

    Raises:
        UserError: it contains a line break or another control character.
    """
    try:
        inert(str(path))
    except ValueError as error:
        raise UserError(f"{str(path)!r}: {error}; choose another place with --root") from error
