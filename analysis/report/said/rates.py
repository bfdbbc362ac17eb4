"""What is said of the groups' rates: against the baseline, and in the ranking."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from analysis.findings.groups import stated
from analysis.findings.rates import Compared
from analysis.report.said.left_out import saying_left_out, without
from analysis.report.said.sentence import Number, Sentence, listed
from analysis.stats import grouped
from analysis.stats.verdict import name, percentage
from model.units import counted

if TYPE_CHECKING:
    from analysis.report.comparison import Comparison
    from analysis.report.facts import Facts, Row
    from analysis.stats.ranking import Ranking
    from analysis.stats.verdict import Verdict

_Class = tuple[str, str, float | None, str, str, str]  # baseline, said, margin, level, method, observed
_MANY = 4  # baselines: with more, as in sweeps with one in each cell, a sentence speaks of all of them
_SAID = {
    "faster": "{groups} {trains} faster than {baseline}{beyond}.",
    "slower": "{groups} {trains} more slowly than {baseline}{beyond}.",
    "equivalent": "{groups} {trains} as fast as {baseline}{within}.",
    "across": "These runs do not show whether {groups} {trains} faster or slower than {baseline}{beyond}: "
    "the intervals exclude equality, but not the margin. More repeats would narrow them.",
    "inconclusive": "These runs do not show whether {groups} {trains} as fast as {baseline}{within}: the "
    "intervals are too wide. More repeats would narrow them.",
    "alike": "The rate of {groups} cannot be told apart from that of {baseline}. That does not make them "
    "equal: to test that, state `margins: {{tokens_per_second: PERCENT}}` in the study before it runs.",
    "observed": "Observed, not a finding: {groups} ran at a different rate from {baseline}, {observed}.",
}


def sentences(facts: Facts, comparison: Comparison) -> list[Sentence]:
    """Each verdict on a rate, those of one kind in one sentence, and then the rankings."""
    runs = {run["run_id"]: run for run in facts.runs}
    compared = comparison.rates.compared
    many = len({it.baseline for it in compared}) > _MANY
    classes = grouped(compared, lambda it: _class(it, "" if many else it.baseline, runs))
    found = [
        (which[1], without(_sentence(*which, items, comparison, facts.infers), facts, items))
        for which, items in classes.items()
    ]
    order = list(_SAID)
    found.sort(key=lambda each: order.index(each[0]) if each[0] in order else len(order))
    return [*(each for _, each in found), *_rankings(facts, comparison), *_alone(facts, comparison)]


def _class(it: Compared, baseline: str, runs: dict[str, Row]) -> _Class:
    verdict = it.verdict
    said: str = verdict.kind
    if said == "different":
        said = "faster" if (verdict.difference or 0) > 0 else "slower"
    if said == "withheld":
        return baseline, verdict.sentence, None, verdict.level, "", ""
    margin = stated([runs[each] for each in it.runs], "margins", "tokens_per_second")
    if said == "inconclusive":
        said = _unsettled(verdict, margin)
    observed = it.observed if said == "observed" else ""
    return baseline, said, margin, verdict.level, verdict.method, observed


def _unsettled(verdict: Verdict, margin: float | None) -> str:
    if not margin:
        return "alike"
    return "across" if (verdict.low or 0) > 0 or (verdict.high or 0) < 0 else "inconclusive"


def _sentence(
    baseline: str,
    said: str,
    margin: float | None,
    level: str,
    method: str,
    observed: str,
    items: Sequence[Compared],
    comparison: Comparison,
    infers: bool,
) -> Sentence:
    kind = items[0].verdict.kind
    other = name(baseline) if baseline else "the baseline of the same settings"
    if kind == "withheld":
        groups = listed([name(it.label) for it in items])
        text = f"There is no verdict on the rate of {groups} against that of {other}. {said}"
        return Sentence(text, kind=kind)
    share = f"the stated margin of {100 * margin:.3g} % of its tokens per second" if margin else ""
    text = _SAID[said].format(
        groups=_groups(items, comparison, margin, baseline),
        trains=("reads prompts" if infers else "trains")
        if len(items) == 1
        else ("read prompts" if infers else "train"),
        baseline=other,
        beyond=f", by more than {share}" if share else "",
        within=f", within {share}" if share else "",
        observed=observed,
    )
    return Sentence(text, tuple(_number(it, margin) for it in items), kind, level, method)


def _groups(items: Sequence[Compared], comparison: Comparison, margin: float | None, baseline: str) -> str:
    """Each group with its change; where each has a baseline of its own, how many and the two extremes."""
    ordered = sorted(items, key=lambda it: it.verdict.difference or 0)
    if baseline or len(items) <= 2:
        return listed([_group(it, comparison, margin) for it in items])
    ends = " to ".join(_group(it, comparison, margin) for it in (ordered[0], ordered[-1]))
    unlike = sum(it.label in comparison.unlike for it in items)
    losses = f"; the losses of {unlike} differ" if unlike else ""
    return f"{len(items)} of {counted(len(comparison.rates.compared), 'group')}, from {ends}{losses},"


def _group(it: Compared, comparison: Comparison, margin: float | None) -> str:
    found = it.verdict
    if found.difference is None:
        return name(it.label)
    other = "; its loss differs" if it.label in comparison.unlike else ""
    return f"{name(it.label)} ({percentage(found.difference, found.low, found.high, margin)}{other})"


def _number(it: Compared, margin: float | None) -> Number:
    found = it.verdict
    value, low, high = (None if x is None else 100 * x for x in (found.difference, found.low, found.high))
    limit = None if margin is None else 100 * margin
    return Number(f"rate of {it.label} against {it.baseline}", value or 0.0, low, high, "percent", limit)


def _rankings(facts: Facts, comparison: Comparison) -> Iterator[Sentence]:
    measured = {run["run_id"] for run in facts.runs if run["outcome"] == "completed" and run["step_seconds"]}
    for ranking in comparison.rates.rankings:
        labels = [label for tier in ranking.tiers for label in tier]
        yield saying_left_out(_ranking(ranking), facts, labels, measured)


def _ranking(ranking: Ranking) -> Sentence:
    labels = list(dict.fromkeys(label for tier in ranking.tiers for label in tier))
    among = f"Among all pairs of {counted(len(labels), 'group')} with repeats"
    if len(ranking.tiers) == 1:
        said = f"{among}, no test tells any two rates apart: {listed([name(label) for label in labels])}."
        return Sentence(said, kind="inconclusive", level="runs", method=_method(ranking))
    tiers = "; ".join(listed([name(label) for label in tier]) for tier in ranking.tiers)
    said = (
        f"{among}, the tests give this order from the fastest: {tiers}. Groups that share a place cannot be"
    )
    return Sentence(f"{said} told apart.", kind="ranking", level="runs", method=_method(ranking))


def _method(ranking: Ranking) -> str:
    methods = {verdict.method for verdict in ranking.verdicts.values()}
    return methods.pop() if len(methods) == 1 else "tests of the log ratio, corrected after Holm"


def _alone(facts: Facts, comparison: Comparison) -> Iterator[Sentence]:
    """The rates of single runs where no baseline is declared, to which they could be compared."""
    if comparison.rates.baseline or not comparison.singles:
        return
    groups = [group for group in facts.groups if group.label in comparison.singles]
    rates = [(group.label, group.tokens_per_second) for group in groups if group.tokens_per_second]
    said = listed([f"{name(label)} {rate.median:,.0f}" for label, rate in rates])
    what = "one run, not a finding" if len(rates) == 1 else "one run each, not findings"
    text = f"Observed in {what}: {said} tokens per second."
    numbers = (
        Number(f"tokens per second of {label}", rate.median, rate.low, rate.high, "tokens per second")
        for label, rate in rates
    )
    yield Sentence(text, tuple(numbers), "observed", "records of one run each", "")
