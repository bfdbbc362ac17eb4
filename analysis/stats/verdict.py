"""What may be said of a difference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["equivalent", "different", "inconclusive", "observed", "withheld"]


@dataclass(frozen=True)
class Verdict:
    """A difference, what may be said of it, and the sentence that says it.

    Attributes:
        kind: 'equivalent' and 'different' are findings; 'inconclusive' is neither; 'observed' is a difference
            of single runs; 'withheld' is one of runs that are not comparable.
        sentence: for the report.
        difference: relative difference of the rates (0.01: the first is 1 % faster), or nats for losses
            (first minus second); None if it is not known.
        low, high: the interval's ends, in the same unit; None where it is refused.
        n: number of runs, or of pairs of runs.
        level: 'records of one run each' or 'runs'.
        method: how the interval was made, worded for a caption.
    """

    kind: Kind
    sentence: str
    difference: float | None
    low: float | None
    high: float | None
    n: int
    level: str
    method: str


def percent(share: float) -> str:
    """A relative difference as a signed number of percent, without the unit or a power of ten: `+1.2`."""
    if abs(share) >= 1:
        return f"{100 * share:+,.0f}"
    powers = abs(share) >= 0.995 or 0 < abs(share) < 1e-6  # two digits would be 1e+02, or 1e-05
    return f"{100 * share:{'+.4f' if powers else '+.2g'}}"
