"""A sentence of a report, with the numbers that it cites."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Number:
    """A number that a sentence cites, so that a text can cite it too.

    Attributes:
        name: in words, unique within an answer: `rate of flash over cudnn, change`.
        value: in its unit.
        low, high: ends of its interval; None without one.
        unit: `percent`, `nats per token`, `tokens per second`, ...
        margin: that a verdict held the interval against, in the unit: rounding moves no end across it.
    """

    name: str
    value: float
    low: float | None
    high: float | None
    unit: str
    margin: float | None = None


@dataclass(frozen=True)
class Sentence:
    """One statement; `backticks` in its text mark code and the names of groups.

    Attributes:
        kind: a verdict's kind (`different`, `equivalent`, `inconclusive`, `observed`, `withheld`), `ranking`,
            `scaling`, or empty where no verdict is behind it.
        level: what it speaks of, `runs` or `records of one run each`; empty where nothing is inferred.
        method: how its intervals were made, worded for a caption.
    """

    text: str
    numbers: tuple[Number, ...] = ()
    kind: str = ""
    level: str = ""
    method: str = ""

    @property
    def inference(self) -> str:
        """How far it reaches, in words; empty where nothing is inferred."""
        reach = {
            "runs": "Holds for further runs under the same conditions",
            "records of one run each": "Holds for these runs only, not for further ones",
        }.get(self.level, "")
        return f"{reach}: {self.method}." if reach and self.method else reach and f"{reach}."
