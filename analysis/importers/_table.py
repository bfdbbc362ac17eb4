"""Rows of a log as its file has them, each with its line, before anybody knows what its columns mean."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from model.record.errors import UserError
from model.record.units import counted

_MOST_COLUMNS = 30  # that a message lists
_MOST_LINES = 5  # lines of one kind that are listed one by one


class Refused(UserError):
    """A log that cannot be imported; the text has FILE:LINE and the reason."""


@dataclass(frozen=True, slots=True)
class LogRow:
    """One record: `line` counts from 1, in the file where it has lines, else among the records."""

    line: int
    values: dict[str, Any]


@dataclass
class LogTable:
    """What could be read of a file: its rows in the order of writing, also those that a later row replaces.

    Attributes:
        problems: FILE:LINE and why, for each line that could not be read.
        run: the column that tells several runs apart, where the format has one.
        twice: names that several columns have; none of them can be mapped.
        unended: the last line, if nothing shows that it was written to its end.
        several: what to do about a file with several runs.
    """

    file: Path
    rows: list[LogRow] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    run: str | None = None
    twice: set[str] = field(default_factory=set)
    unended: int | None = None
    several: str = "split the file, or name the column that tells them apart (`run:` in a mapping)"

    def columns(self) -> list[str]:
        """The names of the columns that can be mapped, in their order."""
        names = dict.fromkeys(name for row in self.rows for name in row.values)
        return [str(name) for name in names if name != ""]

    def skip(self, line: int, why: str) -> None:
        """Leave a line out and record why."""
        self.problems.append(f"{self.file}:{line}: {why}")


def text_of(file: Path) -> str:
    """The text of a file. Raises Refused if it is empty or no text."""
    content = content_of(file)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        byte = f"byte 0x{content[error.start]:02x} is not UTF-8"
        raise Refused(f"{file}:{line}: {byte}: not a text file{_unpacked(content)}") from error
    if not text.strip():
        raise Refused(f"{file}:1: the file is empty")
    return text


def _unpacked(content: bytes) -> str:
    """What to do with a file that begins so, before it is imported; empty if nothing is known."""
    begins = {
        b"\x1f\x8b": "unpack it with gunzip",
        b"PK": "unpack it with unzip",
        b"\xff\xfe": "save it as UTF-8",
    }
    return next((f"; {what} first" for start, what in begins.items() if content.startswith(start)), "")


def content_of(file: Path) -> bytes:
    """The bytes of a regular file. Raises Refused."""
    try:
        if not file.is_file():
            raise Refused(f"{file}: {'a folder' if file.is_dir() else 'no such file'}; give a log file")
        return file.read_bytes()
    except OSError as error:
        raise Refused(f"{file}: {error.strerror}") from error


def json_lines(file: Path) -> LogTable:
    """Read a file of one JSON object a line. Other lines are left out and reported.

    Raises:
        Refused: it is empty, no text, or has fewer objects than other lines.
    """
    table = LogTable(file)

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(pairs)
        if len(values) < len(pairs):
            table.twice.update(
                name for name, count in Counter(name for name, _ in pairs).items() if count > 1
            )
        return values

    for number, line in enumerate(text_of(file).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line, object_pairs_hook=once)
        except (ValueError, RecursionError) as error:
            table.skip(number, f"not JSON ({error})")
            continue
        if isinstance(value, dict):
            table.rows.append(LogRow(number, value))
        else:
            table.skip(number, "not a JSON object")
    if len(table.problems) >= max(1, len(table.rows)):
        with suppress(ValueError, RecursionError):  # of one document the records may be a part
            document = json.loads(text_of(file))
            records = ".log_history" if "log_history" in document else "."
            raise Refused(
                f"{file}:1: one JSON document, not an object a line: write its records with "
                f"jq -c '{records}[]' {shlex.quote(file.name)} > records.jsonl"
            )
        bad = counted(len(table.problems), "bad line")
        raise Refused(f"{table.problems[0]}; {bad}, {len(table.rows)} good: not a JSONL log")
    return table


def shortened(problems: Iterable[str]) -> list[str]:
    """The first few, and how many more there are."""
    listed = list(problems)
    more = len(listed) - _MOST_LINES
    return [*listed[:_MOST_LINES], f"and {counted(more, 'more line')}"] if more > 0 else listed


def mapping_example(table: LogTable) -> str:
    """How to say which column is which, with the columns that there are."""
    there = table.columns()
    likely = (name for name in there if re.search("step|iter|batch", name, re.I))
    step = next(likely, next((name for name in there if "loss" not in name.lower()), "STEP"))
    others = [name for name in there if name != step]
    loss = next((name for name in others if "loss" in name.lower()), next(iter(others), "LOSS"))
    return (
        "Name it in a YAML file and give that with --mapping, such as "
        f"`columns: {{step: {_quoted(step)}, loss: {_quoted(loss)}}}` (columns: {listed_columns(there)})"
    )


def listed_columns(names: Sequence[str]) -> str:
    """Names of columns as a mapping has them."""
    shown = [_quoted(name) for name in names[:_MOST_COLUMNS]]
    return ", ".join([*shown, *(["..."] * (len(names) > _MOST_COLUMNS))]) or "none"


def _quoted(name: str) -> str:
    return name if name.isidentifier() else json.dumps(name)
