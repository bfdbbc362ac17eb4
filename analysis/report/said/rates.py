"""What is said of the groups' rates: against the baseline, and in the ranking."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from analysis.report.said.left_out import saying_left_out, without
from analysis.report.said.sentence import Number, Sentence
from analysis.stats import grouped
from analysis.verdicts.groups import stated
from analysis.verdicts.rates import RateVerdict
from analysis.wording import group_name, listed, percentage, sentence
from model.record.units import counted

if TYPE_CHECKING:
    from analysis.report.comparison import StudyComparison
    from analysis.report.facts import Facts, Row
    from analysis.stats.ranking import Ranking
    from analysis.stats.verdict import Verdict

CHANGE = "rate of "  # how the name of such a number starts
_Class = tuple[str, str, float | None, str, str, str]  # baseline, said, margin, level, method, observed
_MANY = 4  # baselines: with more, as in sweeps with one in each cell, a sentence speaks of all of them
_FEW = 2  # pairs of groups that tests tell apart, up to which a sentence names them and no order
_SAID = {
    "faster": "{groups} {train} faster than {baseline}{beyond}.",
    "slower": "{groups} {train} more slowly than {baseline}{beyond}.",
    "equivalent": "{groups} {train} as fast as {baseline}{within}.",
    "across": "These runs do not show whether {groups} {train} faster or slower than {baseline}{beyond}: "
    "{intervals_exclude} equality, but not the margin. More repeats would narrow {them}.",
    "inconclusive": "These runs do not show whether {groups} {train} as fast as {baseline}{within}: "
    "{intervals_are} too wide. More repeats would narrow {them}.",
    "corrected": "The ranking does not tell the rate of {groups} apart from that of {baseline}: "
    "{intervals_exclude} equality, but the test, which is corrected for all pairs, does not.",
    "alike": "The rate of {groups} cannot be told apart from that of {baseline}. That does not make them "
    "equal: to test that, {state}.",
    "untested": "There is no verdict on the rate of {groups} against that of {baseline}. {method}.",
    "observed": "Observed, not a finding: {groups} ran at a different rate from {baseline}, {observed}.",
    "unseen": "These runs do not show whether {groups} ran at a different rate from {baseline}, {observed}: "
    "{intervals_include} equality.",
    "without": "These runs do not show whether {groups} ran at a different rate from {baseline}, {observed}: "
    "there is no interval.",
}
_MARGIN = "state `margins: {tokens_per_second: PERCENT}` in the study before it runs"
_MARGIN_OF_IMPORT = "import again with `--margin tokens_per_second=PERCENT`"
_ONE = {
    "train": "trains",
    "intervals_exclude": "the interval excludes",
    "intervals_include": "the interval includes",
    "intervals_are": "the interval is",
    "them": "it",
}
_SEVERAL = {
    "train": "train",
    "intervals_exclude": "the intervals exclude",
    "intervals_include": "the intervals include",
    "intervals_are": "the intervals are",
    "them": "them",
}


def sentences(facts: Facts, comparison: StudyComparison) -> list[Sentence]:
    """Each verdict on a rate, those of one kind in one sentence, and then the rankings."""
    runs = {run["run_id"]: run for run in facts.runs}
    compared = comparison.rates.compared
    many = len({it.baseline for it in compared}) > _MANY
    classes = grouped(compared, lambda it: _class(it, "" if many else it.baseline, runs))
    found = [
        (which[1], without(_sentence(*which, items, comparison, facts), facts, items))
        for which, items in classes.items()
    ]
    order = list(_SAID)
    found.sort(key=lambda each: order.index(each[0]) if each[0] in order else len(order))
    return [*(each for _, each in found), *_rankings(facts, comparison), *_alone(facts, comparison)]


def _class(it: RateVerdict, baseline: str, runs: dict[str, Row]) -> _Class:
    verdict = it.verdict
    said: str = verdict.kind
    if said == "different":
        said = "faster" if (verdict.difference or 0) > 0 else "slower"
    if said == "withheld":
        return baseline, sentence(verdict), None, verdict.level, "", ""
    margin = stated([runs[each] for each in it.runs], "margins", "tokens_per_second")
    observed = it.observed if said == "observed" else ""
    if said == "inconclusive":
        said = _unsettled(verdict, margin)
    if said == "observed":
        said = {None: "without", False: "unseen", True: said}[verdict.apart]
    return baseline, said, margin, verdict.level, verdict.method, observed


def _unsettled(verdict: Verdict, margin: float | None) -> str:
    if verdict.apart is None:
        return "untested"
    if not margin:
        return "corrected" if verdict.apart else "alike"
    return "across" if verdict.apart else "inconclusive"


def _sentence(
    baseline: str,
    said: str,
    margin: float | None,
    level: str,
    method: str,
    observed: str,
    items: Sequence[RateVerdict],
    comparison: StudyComparison,
    facts: Facts,
) -> Sentence:
    kind = items[0].verdict.kind
    other = group_name(baseline) if baseline else "the baseline of the same settings"
    if kind == "withheld":
        groups = listed([group_name(it.label) for it in items])
        text = f"There is no verdict on the rate of {groups} against that of {other}. {said}"
        return Sentence(text, kind=kind)
    share = f"the stated margin of {100 * margin:.3g} % of its tokens per second" if margin else ""
    number = _ONE if len(items) == 1 else _SEVERAL
    if facts.infers:
        number = number | {"train": f"{number['train'].replace('train', 'read')} prompts"}
    text = _SAID[said].format(
        groups=_groups(items, comparison, margin, baseline),
        baseline=other,
        beyond=f", by more than {share}" if share else "",
        within=f", within {share}" if share else "",
        observed=observed,
        state=_MARGIN_OF_IMPORT if facts.imported else _MARGIN,
        method=f"{method[:1].upper()}{method[1:]}",
        **number,
    )
    if said in ("unseen", "without"):
        kind = "inconclusive"
    if said in ("untested", "without"):
        level = method = ""
    return Sentence(text, tuple(_number(it, margin) for it in items), kind, level, method)


def _groups(
    items: Sequence[RateVerdict], comparison: StudyComparison, margin: float | None, baseline: str
) -> str:
    """Each group with its change; where each has a baseline of its own, how many and the two extremes."""
    ordered = sorted(items, key=lambda it: it.verdict.difference or 0)
    if baseline or len(items) <= 2:
        return listed([_group(it, comparison, margin) for it in items])
    ends = " to ".join(_group(it, comparison, margin) for it in (ordered[0], ordered[-1]))
    unlike = sum(it.label in comparison.unlike for it in items)
    losses = f"; the losses of {unlike} differ" if unlike else ""
    return f"{len(items)} of {counted(len(comparison.rates.compared), 'group')}, from {ends}{losses},"


def _group(it: RateVerdict, comparison: StudyComparison, margin: float | None) -> str:
    found = it.verdict
    if found.difference is None:
        return group_name(it.label)
    other = "; its loss differs" if it.label in comparison.unlike else ""
    return f"{group_name(it.label)} ({percentage(found.difference, found.low, found.high, margin)}{other})"


def _number(it: RateVerdict, margin: float | None) -> Number:
    found = it.verdict
    value, low, high = (None if x is None else 100 * x for x in (found.difference, found.low, found.high))
    limit = None if margin is None else 100 * margin
    return Number(f"{CHANGE}{it.label} against {it.baseline}", value or 0.0, low, high, "percent", limit)


def _rankings(facts: Facts, comparison: StudyComparison) -> Iterator[Sentence]:
    measured = {run["run_id"] for run in facts.runs if run["outcome"] == "completed" and run["step_seconds"]}
    for ranking in comparison.rates.rankings:
        labels = [label for tier in ranking.tiers for label in tier]
        yield saying_left_out(_ranking(ranking), facts, labels, measured)


def _ranking(ranking: Ranking) -> Sentence:
    labels = list(dict.fromkeys(label for tier in ranking.tiers for label in tier))
    tested = {pair: found for pair, found in ranking.verdicts.items() if set(pair) <= set(labels)}
    apart = {pair: found for pair, found in tested.items() if found.kind == "different"}
    kind = "ranking" if apart else "inconclusive"
    few = tested if len(tested) == 1 else apart if len(apart) <= _FEW else {}
    among = f"Among all pairs of {counted(len(labels), 'group')} with repeats"
    if few:
        pairs = listed([_pair(*pair, found) for pair, found in few.items()])
        many = f"{among}, the tests tell {len(apart)} of {len(tested)} apart: "
        said = f"{many}{pairs}." if len(tested) > 1 else f"{pairs[:1].upper()}{pairs[1:]}."
    elif not apart:
        said = (
            f"{among}, no test tells any two rates apart: {listed([group_name(label) for label in labels])}."
        )
    else:
        tiers = "; ".join(listed([group_name(label) for label in tier]) for tier in ranking.tiers)
        said = (
            f"{among}, the tests tell {len(apart)} of {len(tested)} apart and give this order from the "
            f"fastest: {tiers}. They do not tell apart groups that share a place."
        )
    numbers = tuple(_ranked(*pair, found) for pair, found in few.items())
    return Sentence(said, numbers, kind, "runs", _method(ranking))


def _pair(one: str, other: str, found: Verdict) -> str:
    difference = found.difference or 0.0
    seen = f"{group_name(one)} ({percentage(difference, found.low, found.high)})"
    if found.kind != "different":
        return f"the test does not tell the rate of {seen} apart from that of {group_name(other)}"
    return f"{seen} is {'faster' if difference > 0 else 'slower'} than {group_name(other)}"


def _ranked(one: str, other: str, found: Verdict) -> Number:
    value, low, high = (None if x is None else 100 * x for x in (found.difference, found.low, found.high))
    return Number(f"ranked rate of {one} over {other}", value or 0.0, low, high, "percent")


def _method(ranking: Ranking) -> str:
    methods = {verdict.method for verdict in ranking.verdicts.values()}
    return methods.pop() if len(methods) == 1 else "tests of the log ratio, corrected after Holm"


def _alone(facts: Facts, comparison: StudyComparison) -> Iterator[Sentence]:
    """The rates of single runs where no baseline is declared, to which they could be compared."""
    if comparison.rates.baseline or not comparison.singles:
        return
    groups = [group for group in facts.groups if group.label in comparison.singles]
    rates = [(group.label, group.tokens_per_second) for group in groups if group.tokens_per_second]
    said = listed([f"{rate.median:,.0f} ({group_name(label)})" for label, rate in rates])
    what = "one run, not a finding" if len(rates) == 1 else "one run each, not findings"
    text = f"Observed in {what}: {said} tokens per second."
    numbers = (
        Number(f"tokens per second of {label}", rate.median, rate.low, rate.high, "tokens per second")
        for label, rate in rates
    )
    yield Sentence(text, tuple(numbers), "observed", "records of one run each", "")
