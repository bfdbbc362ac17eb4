"""How the runs of a group ended before and after. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from analysis.verdicts.difference import Row

# What code can be blamed for; the other outcomes come from the machine, or from somebody's request.
_BAD = frozenset({"oom_gpu", "oom_host", "unsupported", "diverged", "timeout", "failed"})
NONE_YET = "no outcome yet"


@dataclass(frozen=True)
class Outcomes:
    """Numbers of runs by outcome.

    Attributes:
        worse: bad outcomes of B that its study does not expect and that no run of A had.
    """

    a: Mapping[str, int]
    b: Mapping[str, int]
    worse: tuple[str, ...]

    @property
    def changed(self) -> bool:
        """Whether there is an outcome that only one side had."""
        return self.a.keys() != self.b.keys()


def outcomes(a: Sequence[Row], b: Sequence[Row]) -> Outcomes:
    """Compare how two sets of runs ended."""
    mine, theirs = (Counter(run["outcome"] or NONE_YET for run in runs) for runs in (a, b))
    unexpected = {run["outcome"] for run in b if run["outcome"] != run["expected_outcome"]}
    return Outcomes(mine, theirs, tuple(sorted((unexpected & _BAD) - mine.keys())))
