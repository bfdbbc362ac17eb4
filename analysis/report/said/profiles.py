"""What is said of profiles: of which groups they do not show where the time of the timed steps goes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from analysis.findings.profiles import UNLIKE, unlike
from analysis.report.said.sentence import Number, Sentence, listed
from analysis.stats.verdict import name

if TYPE_CHECKING:
    from analysis.report.facts import Facts


def sentences(facts: Facts) -> Iterator[Sentence]:
    """One for each figure that is of slower steps than those that were timed."""
    for phase, noun in (("step", "prefill" if facts.infers else "step"), ("decode", "decoded token")):
        if found := unlike(row for row in facts.profiles if row["phase"] == phase):
            groups = listed([f"{name(label)} ({more:+.1f} %)" for label, more in found.items()])
            numbers = (
                Number(f"profiled {noun} over timed {noun} of {label}, change", more, None, None, "percent")
                for label, more in found.items()
            )
            yield Sentence(
                f"The figure of where the time of a {noun} goes shows {noun}s profiled after the run. "
                f"Those of {groups} took over {UNLIKE:.0f} % longer or shorter than the timed ones, "
                "so it does not show where the time of the timed ones went.",
                tuple(numbers),
            )
