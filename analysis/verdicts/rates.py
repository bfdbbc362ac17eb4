"""Rates: each group against the declared baseline, and a ranking of the groups that have repeats."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp

from analysis.stats.equivalence import TESTS, beyond, change
from analysis.stats.estimate import CONFIDENCE, FEWEST_RUNS, median
from analysis.stats.paired import RUNS, Ratio, paired_runs, single_pair
from analysis.stats.ranking import Ranking, rank
from analysis.stats.repeats import error_of_a_look, look
from analysis.stats.student import log_ratio
from analysis.stats.verdict import Kind, Looks, PairTest, SingleRuns, Untested, Verdict, of_single_runs
from analysis.verdicts.groups import (
    Group,
    common_margin,
    compared,
    declared,
    differing,
    groups_of,
    looks,
    steps,
)
from analysis.verdicts.guard import Difference, breaking, withheld
from analysis.verdicts.values import Row
from analysis.wording import group_name, in_runs, inverse, named_or_counted
from analysis.wording import look as look_in_words
from analysis.wording import withheld as withheld_in_words

ENOUGH = FEWEST_RUNS  # repeats: from so many runs an interval assumes no distribution
MOST_RANKED = 30  # groups; every pair of them is compared
_SIZES = "Groups of different numbers of processes are not ranked together: their machines differ in size."


@dataclass(frozen=True)
class RateVerdict:
    """A group's rate over its baseline's.

    Attributes:
        ratio: of the rates; above 1 where the group is faster. The verdict decides, not its interval.
        margin: that the runs state, relative; None if they state none, or not the same.
        differences: what the guard found between the two.
        single: how many runs it is of where one of the groups has a single run; None where both have several.
    """

    label: str
    baseline: str
    ratio: Ratio
    margin: float | None
    verdict: Verdict
    differences: tuple[Difference, ...]
    runs: frozenset[str]
    single: SingleRuns | None = None

    @property
    def observed(self) -> str:
        """`in one run each`, or how many runs it is of where one of the groups has a single run."""
        return in_runs(self.single) if self.single else ""

    @property
    def shown(self) -> Ratio:
        """The ratio, without an interval where the verdict is withheld."""
        return replace(self.ratio, low=None, high=None) if self.verdict.kind == "withheld" else self.ratio


@dataclass(frozen=True)
class StepVerdict:
    """What a setting changes in the rate, all else being equal."""

    setting: str
    rate: RateVerdict


@dataclass(frozen=True)
class Rates:
    """What may be said about the rates of a study.

    Attributes:
        baseline: the factors that the study declares; None if it declares none.
        compared: each group against its baseline, in the study's order.
        steps: groups that are one of the baseline's settings apart, where that tells more.
        rankings: one of each set of two groups or more that are comparable with each other.
        unranked: why groups with repeats are in no ranking together.
    """

    baseline: dict[str, object] | None
    compared: tuple[RateVerdict, ...]
    rankings: tuple[Ranking, ...]
    unranked: tuple[str, ...]
    steps: tuple[StepVerdict, ...] = ()

    @property
    def by_margin(self) -> bool:
        """Whether a verdict is of two one-sided tests, whose 90 % interval is not the ratio's."""
        return any(TESTS in rate.verdict.method for rate in self.compared)

    @property
    def against_ranking(self) -> tuple[str, ...]:
        """Where the ranking, corrected for all of its pairs, does not confirm verdicts, of one test each."""
        undecided: dict[tuple[str, int], list[str]] = {}
        for rate in self.compared:
            if pairs := self._unconfirmed(rate):
                undecided.setdefault((rate.baseline, pairs), []).append(rate.label)
        sentences = [
            f"Each verdict is tested alone: corrected for all {pairs} pairs, the ranking does not tell "
            f"{group_name(baseline)} from {named_or_counted(labels)}."
            for (baseline, pairs), labels in undecided.items()
        ]
        different = [step for step in self.steps if step.rate.verdict.kind == "different"]
        if doubtful := [step for step in different if self._unconfirmed(step.rate)]:
            sentences.append(
                f"Of {len(different)} verdicts on single settings that say faster or slower, "
                f"the ranking confirms {len(different) - len(doubtful) or 'none'}."
            )
        return tuple(sentences)

    def _unconfirmed(self, rate: RateVerdict) -> int:
        """How many pairs the ranking is corrected for that does not confirm a difference; 0 of another."""
        ranked = _of_pair(_ranked(self.rankings), rate.label, rate.baseline)
        if rate.verdict.kind != "different" or not ranked or ranked.kind == "different":
            return 0
        assert isinstance(ranked.reason, PairTest)
        return ranked.reason.pairs

    def tiers(self, label: str) -> tuple[str, ...]:
        """The tiers that a group is in: `2`, or `B2` in the second of several rankings."""
        return tuple(
            self.name(ranking, number)
            for ranking in self.rankings
            for number, tier in enumerate(ranking.tiers, start=1)
            if label in tier
        )

    def name(self, ranking: Ranking, number: int) -> str:
        """What a tier is called."""
        several = len(self.rankings) > 1
        return f"{chr(ord('A') + self.rankings.index(ranking)) if several else ''}{number}"


def rates(rows: Sequence[Row]) -> Rates:
    """Compare the runs of one study.

    Args:
        rows: the answer to MEASURED_RUNS.
    """
    groups, baseline = groups_of(rows), declared(rows)
    rankings, unranked = _rankings([*groups.values()], lambda group: group.seconds)
    ranked = _ranked(rankings)
    against_baseline = [_rate_verdict(a, b, ranked) for a, b in compared(groups, baseline)]
    by_setting = [
        StepVerdict(step.setting, _rate_verdict(step.group, step.without, ranked))
        for step in steps(groups, baseline)
    ]
    return Rates(baseline, tuple(against_baseline), tuple(rankings), tuple(unranked), tuple(by_setting))


def decoding(rows: Sequence[Row]) -> tuple[Ranking, ...]:
    """Rank the groups by the seconds of a decoded token, as `rates` does by those of a prompt's.

    Args:
        rows: the answer to MEASURED_RUNS.
    """
    groups = groups_of([row for row in rows if row["decode_seconds"]])
    rankings, _ = _rankings(
        [*groups.values()], lambda group: {key: run["decode_seconds"] for key, run in group.pairs.items()}
    )
    return tuple(rankings)


def _rate_verdict(a: Group, b: Group, ranked: Mapping[tuple[str, str], Verdict]) -> RateVerdict:
    ratio, differences, runs = ratio_of(a, b), differing(a, b), [*a.runs, *b.runs]
    margin = common_margin(runs, "tokens_per_second")
    verdict = replace(
        _verdict(a, b, ratio, margin, _of_pair(ranked, a.label, b.label)),
        groups=(a.label, b.label),
        imported=any(run["imported"] for run in runs),
    )
    return RateVerdict(
        label=a.label,
        baseline=b.label,
        ratio=ratio,
        margin=margin,
        verdict=withheld(verdict, differences, "speed"),
        differences=tuple(differences),
        runs=frozenset(run["run_id"] for run in runs),
        single=single_runs(a, b, ratio),
    )


def _ranked(rankings: Iterable[Ranking]) -> dict[tuple[str, str], Verdict]:
    return {pair: verdict for ranking in rankings for pair, verdict in ranking.verdicts.items()}


def _of_pair(ranked: Mapping[tuple[str, str], Verdict], a: str, b: str) -> Verdict | None:
    """What the ranking says about a against b; it has each pair once, the faster first."""
    if (a, b) in ranked or (b, a) not in ranked:
        return ranked.get((a, b))
    verdict = ranked[b, a]
    difference, high, low = (
        None if end is None else inverse(end) for end in (verdict.difference, verdict.low, verdict.high)
    )
    reason = replace(verdict.reason, turned=True) if isinstance(verdict.reason, PairTest) else verdict.reason
    return replace(verdict, reason=reason, difference=difference, low=low, high=high, groups=(a, b))


def _rankings(
    every: list[Group], seconds: Callable[[Group], dict[Hashable, float]]
) -> tuple[list[Ranking], list[str]]:
    """Rank what is comparable: a group joins the first set in which nothing breaks a comparison with it.

    Each ranking has its share of the study's error; of a look's error if `until` decided how many runs.

    Args:
        every: of which those of several runs are ranked.
        seconds: what of a group is ranked, by what its runs are paired by.
    """
    groups = [group for group in every if len(group.runs) > 1]
    if len(groups) > MOST_RANKED:
        return [], [
            f"{len(groups)} groups are too many to rank: at most {MOST_RANKED} are compared pair by pair."
        ]
    sets: list[list[Group]] = []
    reasons: dict[str, None] = {}
    for group in groups:
        for members in sets:
            broken = [why for other in members if (why := _why_apart(group, other))]
            reasons |= dict.fromkeys(broken)
            if not broken:
                members.append(group)
                break
        else:
            sets.append([group])
    several = [members for members in sets if len(members) > 1]
    rankings = []
    for members in several:
        until = looks([run for group in members for run in group.runs])
        error = 1 - CONFIDENCE
        if until:
            error = error_of_a_look(until[1], len({run["seed"] for run in members[0].runs}))
        rankings.append(rank({group.label: seconds(group) for group in members}, error / len(several)))
    return rankings, list(reasons)


def _why_apart(a: Group, b: Group) -> str | None:
    """Why two groups are in no ranking together; None if nothing breaks a comparison."""
    differences = differing(a, b)
    if {change.topic for change in differences if "speed" in change.breaks} == {"processes"}:
        return _SIZES
    broken = breaking(differences, "speed")
    return withheld_in_words(broken) if broken else None


def ratio_of(a: Group, b: Group) -> Ratio:
    """The rate of a over that of b: over runs where both have several, else of medians.

    Over runs it is paired or not like the test behind the verdict: otherwise the two could contradict each
    other. Where a group has a single run, it is to its pair in the other group, or else to its median.
    """
    first, second = a.seconds, b.seconds
    common = [key for key in first if key in second]
    if min(len(first), len(second)) == 1:
        if common:
            one, other = (
                [value / run["tokens_per_step"] for value in run["counted_step_seconds"] or ()]
                for run in (group.pairs[common[0]] for group in (a, b))
            )
            if one and other:
                return single_pair(one, other)
        ratio = median(list(second.values())) / median(list(first.values()))
        method = f"no interval, {in_runs(SingleRuns(len(a.runs), len(b.runs)))}, unpaired"
        return Ratio(ratio, None, None, 1, RUNS, method)
    until = looks([*a.runs, *b.runs])
    if until and len(common) > 1:
        pairs = [(first[key], second[key]) for key in common]
        last = look(pairs, *until, len({run["seed"] for run in a.runs}))
        method = look_in_words(last)
        if last.low is not None:
            method += f"; t interval of the log ratio over {len(pairs)} pairs of runs"
        return replace(paired_runs(pairs), low=last.low, high=last.high, method=method)
    mean, n, how = log_ratio(first, second)
    low, high = mean.interval(CONFIDENCE)
    return Ratio(exp(mean.value), exp(low), exp(high), n, RUNS, f"95 % t interval of the log ratio, {how}")


def single_runs(a: Group, b: Group, ratio: Ratio) -> SingleRuns | None:
    """How many runs were observed; None where both groups have several."""
    sizes = len(a.runs), len(b.runs)
    if min(sizes) > 1:
        return None
    sides, repeat_of = [a.runs, b.runs], ""
    if ratio.level != RUNS:
        key = next(key for key in a.pairs if key in b.pairs)
        sides = [[a.pairs[key]], [b.pairs[key]]]
        repeat_of = (a if sizes[0] > 1 else b).label if max(sizes) > 1 else ""
    # One GPU alone, that is known: no attempt on another one came before.
    ours, theirs = (
        {run["gpu_uuid"] if run["gpus"] == 1 and run["resumed_step"] is None else None for run in side}
        for side in sides
    )
    apart = None not in ours | theirs and not ours & theirs
    return SingleRuns(*sizes, repeat_of=repeat_of, on_other_gpus=apart)


def _verdict(a: Group, b: Group, ratio: Ratio, margin: float | None, ranked: Verdict | None) -> Verdict:
    """What may be said of a ratio: that of a single run, which may be the machine's, is at most observed."""
    difference = ratio.ratio - 1
    low, high = (None if end is None else end - 1 for end in (ratio.low, ratio.high))
    numbers = (difference, low, high, ratio.n, ratio.level, ratio.method, ratio.is_range)
    kind: Kind
    if single := single_runs(a, b, ratio):
        return Verdict(of_single_runs(low, high), single, *numbers)
    if looks([*a.runs, *b.runs]):
        if ranked and not margin:
            return ranked
        kind = "inconclusive"
        if low is not None and high is not None:
            if margin:
                kind = beyond(low, high, margin)
            elif not low <= 0 <= high:
                kind = "different"
        return Verdict(kind, Looks(margin), *numbers)
    if margin:
        return change(b.seconds, a.seconds, margin)
    if ranked:
        return ranked
    why = "they share no ranking, and the study states no margin"
    return Verdict("inconclusive", Untested(), difference, None, None, ratio.n, RUNS, why)
