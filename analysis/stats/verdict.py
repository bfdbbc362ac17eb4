"""What may be said of a difference, and what decided it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Kind = Literal["equivalent", "different", "inconclusive", "observed", "withheld"]
Quantity = Literal["rate", "loss"]


def of_single_runs(low: float | None, high: float | None) -> Kind:
    """What may be said of a difference of single runs, by its interval: at most that it was observed.

    'inconclusive' if that includes equality, and without one: then two starts of one program may differ so.
    """
    return "inconclusive" if low is None or high is None or low <= 0 <= high else "observed"


@dataclass(frozen=True)
class MarginTest:
    """The interval was held against a margin, as a fraction of the rate or in nats."""

    margin: float


@dataclass(frozen=True)
class NoMargin:
    """There is an interval, but no margin was stated in advance."""


@dataclass(frozen=True)
class PairTest:
    """A test of one pair of groups among several, corrected after Holm.

    Attributes:
        turned: whether the verdict is of the second group over the first; a ranking has the faster one first.
    """

    p: float
    pairs: int
    how: str
    turned: bool = False


@dataclass(frozen=True)
class SingleRuns:
    """A side has a single run.

    Attributes:
        first, second: number of runs of each side.
        repeat_of: the group of which one of several repeats is compared; empty if all of its runs are.
        on_other_gpus: whether no run of one side was on a GPU of the other's, so that a difference may be
            that of the GPUs.
    """

    first: int
    second: int
    repeat_of: str = ""
    on_other_gpus: bool = False


@dataclass(frozen=True)
class Looks:
    """The interval allows for a look after each repeat; held against a margin, or against equality."""

    margin: float | None


@dataclass(frozen=True)
class Untested:
    """The groups share no ranking, and no margin was stated."""


@dataclass(frozen=True)
class TooFewRecords:
    """One pair of runs has too few records for an interval."""


@dataclass(frozen=True)
class NothingPaired:
    """No two runs saw the same data in the same order at the same steps."""


@dataclass(frozen=True)
class NotFinite:
    """A loss stopped being finite at a step; None if both sides' did at the same one."""

    step: int | None


@dataclass(frozen=True)
class Incomparable:
    """What else differs between the runs and breaks the comparison, as sentences."""

    differences: tuple[str, ...]


Reason: TypeAlias = (
    MarginTest | NoMargin | PairTest | SingleRuns | Looks | Untested | TooFewRecords
    | NothingPaired | NotFinite | Incomparable
)  # fmt: skip


@dataclass(frozen=True)
class Verdict:
    """A difference, and what may be said of it; `analysis.wording` puts it in words.

    Attributes:
        kind: 'equivalent' and 'different' are findings; 'inconclusive' is neither; 'observed' is a difference
            of single runs whose interval excludes equality; 'withheld' is one of runs that are not
            comparable.
        reason: what decided the kind.
        difference: relative difference of the rates (0.01: the first is 1 % faster), or nats for losses
            (first minus second); None if it is not known.
        low, high: the interval's ends, in the same unit; None where it is refused.
        n: number of runs, or of pairs of runs.
        level: 'records of one run each' or 'runs'.
        method: how the interval was made, worded for a caption.
        is_range: whether the ends are those of a range, and of no interval.
        groups: labels of the first and the second; empty where the two are sides of one group.
        noise: standard deviation of the difference of two repeats, in nats; None if nothing was repeated.
        imported: whether other programs logged some of the runs, so that no study of ours plans more.
    """

    kind: Kind
    reason: Reason
    difference: float | None
    low: float | None
    high: float | None
    n: int
    level: str
    method: str
    is_range: bool = False
    quantity: Quantity = "rate"
    groups: tuple[str, str] | None = None
    noise: float | None = None
    imported: bool = False

    @property
    def apart(self) -> bool | None:
        """Whether the interval excludes equality; None without an interval."""
        if self.low is None or self.high is None:
            return None
        return self.low > 0 or self.high < 0

    @property
    def margin(self) -> float | None:
        """The margin that its interval was held against; None without one."""
        return self.reason.margin if isinstance(self.reason, MarginTest | Looks) else None
