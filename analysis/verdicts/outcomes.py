"""How the runs of a group ended before and after. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from analysis.verdicts.difference import Row
from model.record.outcome import NONE_YET, Outcome


@dataclass(frozen=True)
class Outcomes:
    """Numbers of runs by outcome.

    Attributes:
        worse: outcomes of B for which its code can be blamed, unless its study expects them or a run of A has
            them too.
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
    bad = {outcome.value for outcome in Outcome if outcome.cause == "code"}
    return Outcomes(mine, theirs, tuple(sorted((unexpected & bad) - mine.keys())))
