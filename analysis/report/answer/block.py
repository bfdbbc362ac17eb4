"""What a report answers first: the question, what was run, what was found, and what cannot be said. Pure.

Every sentence and row is made from verdicts, outcomes and differences that others computed: nothing is
computed twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from analysis.report.answer import headline, limits, ran, verdicts
from analysis.report.answer.statement import Number, Sentence, VerdictRow

if TYPE_CHECKING:
    from analysis.report.backends import Backends
    from analysis.report.comparison import StudyComparison
    from analysis.report.facts import Facts
    from analysis.verdicts.guard import Difference


@dataclass(frozen=True)
class StudyAnswer:
    """The block at the top of a report.

    Attributes:
        question: what the study asks.
        ran: what was run, in one sentence.
        headline: the answer, in a sentence or two.
        verdicts: each group's, with its numbers and what decided it.
        expected: how runs ended that ended as the study expected. Such an end is a result.
        unexpected: what nobody planned: other ends, wrong backends, a drifting or busy machine.
        cannot_say: what the runs do not show, and what would; what matters most comes first.
    """

    question: str
    ran: Sentence
    headline: list[Sentence]
    verdicts: list[VerdictRow]
    expected: list[Sentence]
    unexpected: list[Sentence]
    cannot_say: list[Sentence]

    @property
    def numbers(self) -> list[Number]:
        """Every number that a sentence or a verdict cites, in order."""
        rows = [row.number for row in self.verdicts if row.number]
        after = [*self.headline, *self.expected, *self.unexpected, *self.cannot_say]
        return [*self.ran.numbers, *rows, *(number for sentence in after for number in sentence.numbers)]

    @property
    def shown(self) -> list[VerdictRow]:
        """The verdicts that the block shows: where these are many, the extremes of each."""
        return verdicts.shown(self.verdicts)


def answer(
    facts: Facts,
    comparison: StudyComparison,
    trust: Backends,
    differences: Sequence[Difference],
    headlines: Callable[[Facts, StudyComparison, Sequence[VerdictRow]], Iterable[Sentence]],
) -> StudyAnswer:
    """The answer of one study.

    Args:
        trust: the certificates of its backends.
        differences: what the guard found among its completed runs.
        headlines: what is said first of runs of their task.
    """
    rows = verdicts.rows(facts, comparison)
    sentences = [*headlines(facts, comparison, rows), *headline.without_result(facts)]
    if not sentences:
        why = f": {comparison.absent}" if comparison.absent else ""
        sentences = [Sentence(f"No answer yet{why or ': no run has completed'}.")]
    return StudyAnswer(
        question=facts.question,
        ran=ran.sentence(facts),
        headline=sentences,
        verdicts=rows,
        expected=ran.expected(facts.runs),
        unexpected=[
            *ran.unexpected(facts, trust),
            *limits.disturbed(comparison),
            *limits.held_up(facts.runs),
            *limits.moved(facts.runs),
        ],
        cannot_say=[
            *verdicts.left_out(facts, comparison),
            *limits.sentences(facts, comparison, differences),
        ],
    )
