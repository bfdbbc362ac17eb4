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


@dataclass(frozen=True)
class AnswerParts:
    """What an answer says of runs of one task.

    Attributes:
        ran: what was run.
        headlines: the answer, in a sentence or two.
        limits: what the runs do not show.
        observed: more of what was measured, as rows beside the verdicts.
        unexpected: what nobody planned, besides ends of runs.
        rate: what the rate of a run is called.
    """

    ran: Callable[[Facts], Sentence] = ran.of_any
    headlines: Callable[[Facts, StudyComparison, Sequence[VerdictRow]], Iterable[Sentence]] = headline.rates
    limits: Callable[[Facts, StudyComparison, Sequence[Difference]], Iterable[Sentence]] = limits.of_any
    observed: Callable[[Facts], Iterable[VerdictRow]] = lambda _facts: ()
    unexpected: Callable[[Facts], Iterable[Sentence]] = lambda _facts: ()
    rate: str = "tokens per second"


def answer_study(
    facts: Facts,
    comparison: StudyComparison,
    backends: Backends,
    differences: Sequence[Difference],
    parts: AnswerParts,
) -> StudyAnswer:
    """The answer of one study.

    Args:
        backends: their certificates.
        differences: what the guard found among its completed runs.
        parts: what is said of runs of its task.
    """
    rows = [*verdicts.rows(facts, comparison, parts.rate), *parts.observed(facts)]
    sentences = [*parts.headlines(facts, comparison, rows), *headline.without_result(facts)]
    if not sentences:
        why = comparison.absent or "no run has completed"
        sentences = [Sentence(f"No answer yet: {why}.")]
    return StudyAnswer(
        question=facts.question,
        ran=parts.ran(facts),
        headline=sentences,
        verdicts=rows,
        expected=ran.expected(facts.runs),
        unexpected=[
            *ran.unexpected(facts, backends),
            *parts.unexpected(facts),
            *limits.disturbed(comparison),
            *limits.held_up(facts.runs),
            *limits.moved(facts),
        ],
        cannot_say=[
            *ran.without_plan(facts.runs),
            *verdicts.left_out(facts, comparison, parts.rate),
            *parts.limits(facts, comparison, differences),
            *limits.reported_elsewhere(facts),
        ],
    )
