"""What a report answers first: the question, what was run, what was found, and what cannot be said. Pure.

Every sentence is made from verdicts, outcomes and differences that others computed: nothing is computed
twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from analysis.report.said import calls, decoding, limits, losses, outcomes, ran, rates, scaling
from analysis.report.said.sentence import Number, Sentence

if TYPE_CHECKING:
    from analysis.report.backends import Backends
    from analysis.report.comparison import StudyComparison
    from analysis.report.facts import Facts
    from analysis.verdicts.guard import Difference

__all__ = ["Answer", "Number", "Sentence", "answer"]


@dataclass(frozen=True)
class Answer:
    """The block at the top of a report.

    Attributes:
        question: what the study asks.
        ran: what was run, in one sentence.
        findings: what was found; of single runs what was observed, which each sentence says.
        nothing: what to say where there are no findings.
        expected: how runs ended that ended as the study expected. Such an end is a result.
        unexpected: what nobody planned: other ends, wrong backends, a drifting or busy machine.
        cannot_say: what the runs do not show, and what would.
    """

    question: str
    ran: Sentence
    findings: list[Sentence]
    nothing: str
    expected: list[Sentence]
    unexpected: list[Sentence]
    cannot_say: list[Sentence]

    @property
    def numbers(self) -> list[Number]:
        """Every number that a sentence cites, in order."""
        parts = (self.findings, self.expected, self.unexpected, self.cannot_say)
        return [number for part in ([self.ran], *parts) for sentence in part for number in sentence.numbers]

    @property
    def compares_rates(self) -> bool:
        """Whether a sentence has the rate of a group against the baseline's."""
        return any(number.name.startswith(rates.CHANGE) for number in self.numbers)


def answer(
    facts: Facts, comparison: StudyComparison, trust: Backends, differences: Sequence[Difference]
) -> Answer:
    """The answer of one study.

    Args:
        trust: the certificates of its backends.
        differences: what the guard found among its completed runs.
    """
    speed = [*scaling.sentences(facts, comparison), *rates.sentences(facts, comparison)]
    loss = [] if facts.infers else losses.sentences(facts, comparison)
    speed += calls.sentences(facts)
    speed += [*decoding.sentences(facts), *decoding.floors(facts)] if facts.infers else []
    unclear = [each for each in (*speed, *loss) if each.kind in ("inconclusive", "withheld")]
    return Answer(
        question=facts.question,
        ran=ran.sentence(facts),
        findings=[
            *sorted((each for each in (*speed, *loss) if each not in unclear), key=_last),
            *outcomes.out_of_memory(facts),
        ],
        nothing=_nothing(comparison),
        expected=outcomes.expected(facts.runs),
        unexpected=[
            *outcomes.unexpected(facts, trust),
            *limits.disturbed(comparison),
            *scaling.held_up(facts.runs),
            *scaling.moved(facts.runs),
        ],
        cannot_say=[*unclear, *limits.sentences(facts, comparison, differences)],
    )


def _nothing(comparison: StudyComparison) -> str:
    if comparison.absent:
        tested = ", and no test tells any two groups apart" if comparison.rates.rankings else ""
        return f"Nothing: {comparison.absent}{tested}."
    return "Nothing yet: the runs so far show neither a difference nor agreement."


def _last(sentence: Sentence) -> bool:
    """What was only observed comes after the findings."""
    return sentence.kind == "observed"
