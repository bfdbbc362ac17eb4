"""What an audit found, and when two numbers are the same."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

_NUMBER = re.compile(r"((?<![\w.)])[-+\u2212]?\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?|\d[\d,]*(?:\.\d+)?)")
# Other versions of libraries, and other processors, round the last bits differently.
_RELATIVE, _DIGITS = 1e-12, 13
_SHOWN = 100  # characters of a text in a message


@dataclass(frozen=True)
class AuditFinding:
    """One thing in a report that its records do not give.

    Attributes:
        file: its path in the report.
        what: which number of the file, as a reader finds it, or what is wrong with the whole file.
        printed, recomputed: what the file says, and what it should; None where there is nothing.
        source: names of the queries that it is computed from, where the page says so.
    """

    file: str
    what: str
    printed: str | None = None
    recomputed: str | None = None
    source: str | None = None

    def __str__(self) -> str:
        if self.printed is None and self.recomputed is None:
            return f"{self.file}: {self.what}"
        shown = "nothing" if self.printed is None else self.printed
        given = self.recomputed or "nothing"
        source = f" (queries: {', '.join(self.source.split())})" if self.source else ""
        return f"{self.file}: {self.what}: it says {shown}, the records give {given}{source}"


@dataclass
class ComparedReport:
    """The result of a comparison.

    Attributes:
        numbers: how many were compared.
        skipped: how many were not, because the code that makes the pages has changed since.
        notes: what was not compared, and why.
    """

    findings: list[AuditFinding] = field(default_factory=list)
    numbers: int = 0
    skipped: int = 0
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Alike:
    """What the two reports have in common, and so how they can be compared.

    Attributes:
        code: the code and templates: pages must be the same, words included.
        altair: its version: so must the specifications of the figures.
        renderer: the drawings must be the same, positions included.
    """

    code: bool
    altair: bool
    renderer: bool


def differing(file: str, what: str, printed: str, recomputed: str) -> AuditFinding:
    """The finding of two texts that differ, each cut to where they do."""
    start = next(
        (place for place, (a, b) in enumerate(zip_longest(printed, recomputed)) if a != b), len(printed)
    )
    start = max(0, start - _SHOWN // 3) if max(len(printed), len(recomputed)) > _SHOWN else 0
    return AuditFinding(file, what, _cut(printed, start), _cut(recomputed, start))


def split(text: str) -> tuple[list[str], list[str]]:
    """The words between numbers, spaces folded, and the numbers."""
    parts = _NUMBER.split(text)
    return [" ".join(part.split()) for part in parts[::2]], parts[1::2]


def same(a: str, b: str) -> bool:
    """Whether two texts have the same words and numbers, apart from the last bits of long numbers."""
    if a == b:
        return True
    (words_a, numbers_a), (words_b, numbers_b) = split(a), split(b)
    return words_a == words_b and all(map(_same_number, numbers_a, numbers_b))


def rounds_alike(a: Sequence[str], b: Sequence[str]) -> bool:
    """Whether numbers are the same as far as both are written out."""
    return len(a) == len(b) and all(map(_rounds_alike, a, b))


def _same_number(a: str, b: str) -> bool:
    if a == b:
        return True
    if min(len(re.sub(r"\D", "", text)) for text in (a, b)) < _DIGITS or not {".", "e"} & {*a, *b}:
        return False
    return math.isclose(_value(a), _value(b), rel_tol=_RELATIVE)  # an infinity is close to itself alone


def _rounds_alike(a: str, b: str) -> bool:
    if a == b:
        return True
    units = []  # what one unit of the last digit is worth: infinite for digits of a hash, such as 1e76234
    for text in (a, b):
        digits, _, power = text.lower().partition("e")
        units.append(float(f"1e{int(power or 0) - len(digits.partition('.')[2])}"))
    unit = max(units)
    return math.isfinite(unit) and abs(_value(a) - _value(b)) <= unit / 2 * (1 + 1e-9)


def _value(text: str) -> float:
    return float(text.replace(",", "").replace("\u2212", "-"))


def _cut(text: str, start: int) -> str:
    shown = " ".join(text[start : start + _SHOWN].split())
    return f"{'...' * (start > 0)}{shown}{'...' * (start + _SHOWN < len(text))}"
