"""What an answer is made of: sentences and rows of verdicts, with the numbers that they cite."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from analysis.stats.verdict import Kind
from analysis.wording import capital, group_name

About = Literal["rate", "step", "loss", "scaling", "alone", "decoding"]


@dataclass(frozen=True)
class Number:
    """A number that a sentence or a row cites, so that a text can cite it too.

    Attributes:
        name: in words, unique within an answer: `rate of flash against cudnn`.
        unit: `percent`, `nats per token`, `tokens per second`, ...
        value: in its unit.
        low, high: ends of its interval, or of the range of all records or runs; None without either.
        margin: that a verdict held the interval against, in the unit: rounding moves no end across it.
        is_range: whether the ends are those of a range.
    """

    name: str
    unit: str
    value: float
    low: float | None = None
    high: float | None = None
    margin: float | None = None
    is_range: bool = False


@dataclass(frozen=True)
class Sentence:
    """One statement; `backticks` in its text mark code and the names of groups."""

    text: str
    numbers: tuple[Number, ...] = ()


@dataclass(frozen=True)
class VerdictRow:
    """What may be said of one group and one quantity.

    Attributes:
        about: which of a group's verdicts it is.
        quantity: what it is about in words, such as `tokens per second`.
        group: its label.
        kind: the verdict's; `measured` of what is compared with an ideal.
        verdict: the kind, or the direction of a difference: `faster`.
        against: label of the group that it is compared with; empty where it is not compared.
        difference, interval: with their units; empty where there is none.
        reason: what decided, or what is missing; `backticks` mark code.
        number: the difference, for texts; None where it is not known.
        level: what its interval speaks of, `runs` or `records of one run each`; empty without an inference.
        method: how its interval was made, worded for a caption.
        setting: that the group has and the other one has not, all else being equal; empty of other rows.
        speedup: of scaling: how many times as fast it is as the first group of its curve.
    """

    about: About
    quantity: str
    group: str
    kind: Kind | Literal["measured"]
    verdict: str
    against: str = ""
    difference: str = ""
    interval: str = ""
    reason: str = ""
    number: Number | None = None
    level: str = ""
    method: str = ""
    speedup: Number | None = None
    setting: str = ""

    @property
    def text(self) -> str:
        """The row in one line, for a text without a table."""
        against = f" against {group_name(self.against)}" if self.against else ""
        ends = f" ({self.interval})" if self.interval else ""
        value = f" {self.difference}{ends}," if self.difference else ""
        reason = f": {self.reason}" if self.reason else ""
        quantity = capital(self.quantity)
        return (
            f"{quantity} of {group_name(self.group)}{against}:{value} {self.verdict}{reason}".rstrip(".")
            + "."
        )

    @property
    def inference(self) -> str:
        """How far it reaches, in words; empty where nothing is inferred."""
        reach = {
            "runs": "Holds for further runs under the same conditions",
            "records of one run each": "Holds for these runs only, not for further ones",
        }.get(self.level)
        return f"{reach}: {self.method}." if reach else ""
