"""A difference between two sets of runs, and which comparisons it breaks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from analysis.stats.verdict import Verdict

Row = dict[str, Any]  # a row of the view `runs`, with its JSON columns parsed
Kind = Literal["speed", "loss", "mfu"]  # what is compared: seconds per step, losses, MFU and TFLOP/s
# Every topic of the guard. The name of a setting is one, too.
TOPICS = (
    "commit", "diff", "device", "processes", "host", "clocks", "throttling", "regime", "starved", "users",
    "driver", "software", "data", "flop", "peak", "padding", "steps", "warmup", "order", "imported",
    "certificate",
)  # fmt: skip
NOTHING: frozenset[Kind] = frozenset()
SPEED: frozenset[Kind] = frozenset({"speed"})
LOSS: frozenset[Kind] = frozenset({"loss"})
MFU: frozenset[Kind] = frozenset({"mfu"})
SPEED_AND_LOSS = SPEED | LOSS


@dataclass(frozen=True)
class Side:
    """One of two sets of runs.

    Attributes:
        name: what sentences call it.
        runs: rows of the view `runs`, with JSON columns parsed.
    """

    name: str
    runs: Sequence[Row]


@dataclass(frozen=True)
class Difference:
    """A difference between two sets of runs.

    Attributes:
        topic: one of `TOPICS`, or the name of a setting; `runner compare --across` takes it.
        sentence: what differs.
        breaks: the comparisons on which no verdict may be given; empty if it is only worth saying.
    """

    topic: str
    sentence: str
    breaks: frozenset[Kind] = NOTHING


def breaking(found: Iterable[Difference], kind: Kind) -> list[Difference]:
    """The differences that break one kind of comparison."""
    return [each for each in found if kind in each.breaks]


def why_withheld(found: Iterable[Difference], kind: Kind) -> str | None:
    """Why no verdict may be given, as a sentence; None if nothing breaks the comparison."""
    reasons = dict.fromkeys(each.sentence for each in breaking(found, kind))
    return f"Withheld, because the runs are not comparable: {' '.join(reasons)}" if reasons else None


def withheld(verdict: Verdict, found: Iterable[Difference], kind: Kind) -> Verdict:
    """The verdict; if differences break the comparison, what was measured alone, and why."""
    why = why_withheld(found, kind)
    return replace(verdict, kind="withheld", sentence=why, low=None, high=None) if why else verdict
