"""Rates: each group against the declared baseline, and a ranking of the groups that have repeats."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp

from analysis.stats.between import FEWEST
from analysis.stats.change import TESTS, beyond, change
from analysis.stats.estimate import CONFIDENCE, median
from analysis.stats.paired import RECORDS, RUNS, Ratio, paired_records, paired_runs
from analysis.stats.ranking import Ranking, rank
from analysis.stats.sequential import error_of_a_look, look
from analysis.stats.student import compared as paired_or_not
from analysis.stats.verdict import Verdict, in_runs
from analysis.verdicts.difference import Difference, breaking, why_withheld, withheld
from analysis.verdicts.groups import Group, Row, compared, declared, differing, groups_of, looks, stated

ENOUGH = FEWEST  # repeats: from so many runs an interval assumes no distribution
MOST_RANKED = 30  # groups; every pair of them is compared
_SIZES = "Groups of different numbers of processes are not ranked together: their machines differ in size."
_OPEN = "shown neither to be equivalent within the margin nor to differ by more"


@dataclass(frozen=True)
class Compared:
    """A group's rate over its baseline's.

    Attributes:
        ratio: of the rates; above 1 where the group is faster. The verdict decides, not its interval.
        differences: what the guard found between the two.
        observed: `in one run each`, or how many runs it is of where one of the groups has a single run.
    """

    label: str
    baseline: str
    ratio: Ratio
    verdict: Verdict
    differences: tuple[Difference, ...]
    runs: frozenset[str]
    observed: str = ""

    @property
    def shown(self) -> Ratio:
        """The ratio, without an interval where the verdict is withheld."""
        return replace(self.ratio, low=None, high=None) if self.verdict.kind == "withheld" else self.ratio


@dataclass(frozen=True)
class Rates:
    """What may be said about the rates of a study.

    Attributes:
        baseline: the factors that the study declares; None if it declares none.
        compared: each group against its baseline, in the study's order.
        rankings: one of each set of two groups or more that are comparable with each other.
        unranked: why groups with repeats are in no ranking together.
    """

    baseline: dict[str, object] | None
    compared: tuple[Compared, ...]
    rankings: tuple[Ranking, ...]
    unranked: tuple[str, ...]

    @property
    def by_margin(self) -> bool:
        """Whether a verdict is of two one-sided tests, whose 90 % interval is not the ratio's."""
        return any(TESTS in it.verdict.method for it in self.compared)

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
    rankings, unranked = _rankings([group for group in groups.values() if len(group.runs) > 1])
    verdicts = {pair: said for ranking in rankings for pair, said in ranking.verdicts.items()}
    found = [_compare(a, b, _of_pair(verdicts, a.label, b.label)) for a, b in compared(groups, baseline)]
    return Rates(baseline, tuple(found), tuple(rankings), tuple(unranked))


def _of_pair(verdicts: Mapping[tuple[str, str], Verdict], a: str, b: str) -> Verdict | None:
    """What the ranking says about a against b; it has each pair once, the faster first."""
    if (a, b) in verdicts or (b, a) not in verdicts:
        return verdicts.get((a, b))
    found = verdicts[b, a]
    difference, high, low = (x and -x / (1 + x) for x in (found.difference, found.low, found.high))
    return replace(found, difference=difference, low=low, high=high)


def _rankings(groups: list[Group]) -> tuple[list[Ranking], list[str]]:
    """Rank what is comparable: a group joins the first set in which nothing breaks a comparison with it."""
    if len(groups) > MOST_RANKED:
        return [], [
            f"{len(groups)} groups are too many to rank: at most {MOST_RANKED} are compared pair by pair."
        ]
    sets: list[list[Group]] = []
    reasons: dict[str, None] = {}
    for group in groups:
        for mine in sets:
            broken = [why for other in mine if (why := _why_apart(group, other))]
            reasons |= dict.fromkeys(broken)
            if not broken:
                mine.append(group)
                break
        else:
            sets.append([group])
    several = [mine for mine in sets if len(mine) > 1]
    return [_ranked(mine, len(several)) for mine in several], list(reasons)


def _why_apart(a: Group, b: Group) -> str | None:
    """Why two groups are in no ranking together; None if nothing breaks a comparison."""
    found = breaking(differing(a, b), "speed")
    return _SIZES if {each.topic for each in found} == {"processes"} else why_withheld(found, "speed")


def _ranked(groups: Sequence[Group], rankings: int) -> Ranking:
    """A ranking, at its share of the study's error; of a look's error if `until` decided how many runs."""
    until = looks([run for group in groups for run in group.runs])
    seconds = {group.label: group.seconds for group in groups}
    error = 1 - CONFIDENCE
    if until:
        error = error_of_a_look(until[1], len({run["seed"] for run in groups[0].runs}))
    return rank(seconds, error / rankings)


def _compare(a: Group, b: Group, ranked: Verdict | None) -> Compared:
    ratio, found = ratio_of(a, b), differing(a, b)
    runs = frozenset(run["run_id"] for group in (a, b) for run in group.runs)
    verdict = _verdict(a, b, ratio, ranked)
    verdict = withheld(verdict, found, "speed")
    return Compared(a.label, b.label, ratio, verdict, tuple(found), runs, observed_in(a, b, ratio))


def ratio_of(a: Group, b: Group) -> Ratio:
    """The rate of a over that of b: over runs where both have several, else by record of one run each."""
    mine, theirs = a.seconds, b.seconds
    common = [key for key in mine if key in theirs]
    if min(len(mine), len(theirs)) == 1:
        return _of_a_single_run(a, b, common)
    until = looks([*a.runs, *b.runs])
    if not until or len(common) < 2:
        return _over_runs(mine, theirs)
    pairs = [(mine[key], theirs[key]) for key in common]
    found = paired_runs(pairs)
    looked = look(pairs, *until, len({run["seed"] for run in a.runs}))
    method = looked.sentence
    if looked.low is not None:
        method += f"; t interval of the log ratio over {len(pairs)} pairs of runs"
    return replace(found, low=looked.low, high=looked.high, method=method)


def _over_runs(mine: Mapping[Hashable, float], theirs: Mapping[Hashable, float]) -> Ratio:
    """Paired or not, like the test behind the verdict: otherwise the two could contradict each other."""
    mean, n, how = paired_or_not(mine, theirs)
    low, high = mean.interval(CONFIDENCE)
    method = f"95 % t interval of the log ratio, {how}"
    return Ratio(exp(mean.value), exp(low), exp(high), n, RUNS, method)


def _of_a_single_run(a: Group, b: Group, common: Sequence[Hashable]) -> Ratio:
    """The ratio of a single run: by step to its pair in the other group, or else of the groups' medians."""
    if common and (found := _by_record(a, b, common[0])):
        return found
    ratio = median(list(b.seconds.values())) / median(list(a.seconds.values()))
    method = f"no interval, {in_runs(len(a.runs), len(b.runs))}, unpaired"
    return Ratio(ratio, None, None, 1, RUNS, method)


def _by_record(a: Group, b: Group, key: Hashable) -> Ratio | None:
    """Step by step, where the two groups share one pair of runs and their step times are given."""
    found = [_per_token(group.pairs[key]) for group in (a, b)]
    if not (found[0].keys() & found[1].keys()):
        return None
    return paired_records(*found)


def _per_token(run: Row) -> dict[int, float]:
    steps, seconds = run["counted_steps"] or (), run["counted_step_seconds"] or ()
    return {step: value / run["tokens_per_step"] for step, value in zip(steps, seconds, strict=True)}


def _verdict(a: Group, b: Group, ratio: Ratio, ranked: Verdict | None) -> Verdict:
    everyone = [*a.runs, *b.runs]
    margin = stated(everyone, "margins", "tokens_per_second")
    if min(len(a.runs), len(b.runs)) == 1 or ratio.level == RECORDS:
        return _observed(a, b, ratio)
    if looks(everyone):
        return ranked if ranked and not margin else _looked_at(a, b, ratio, margin)
    if margin:
        return change(b.seconds, a.seconds, margin)
    if ranked:
        return ranked
    why = "they share no ranking, and the study states no margin"
    sentence = f"{a.label} and {b.label} are not tested: {why}."
    return Verdict("inconclusive", sentence, ratio.ratio - 1, None, None, ratio.n, RUNS, why)


def _observed(a: Group, b: Group, ratio: Ratio) -> Verdict:
    """The verdict if a group has a single run: the difference may come from the machine, not from the groups.

    This also holds if only one of the groups has a single run.
    """
    ends = "" if ratio.low is None else f" ({ratio.low:.4g} to {ratio.high:.4g} over its records)"
    sentence = (
        f"{a.label} ran at {ratio.ratio:.4g} of the rate of {b.label}{ends} {observed_in(a, b, ratio)}: "
        f"observed, not a finding. {_what_it_takes([*a.runs, *b.runs])}"
    )
    low, high = (None if end is None else end - 1 for end in (ratio.low, ratio.high))
    return Verdict("observed", sentence, ratio.ratio - 1, low, high, ratio.n, ratio.level, ratio.method)


def observed_in(a: Group, b: Group, ratio: Ratio) -> str:
    """How many runs were observed; empty where both groups have several."""
    sizes = len(a.runs), len(b.runs)
    if min(sizes) > 1:
        return ""
    if ratio.level == RUNS or max(sizes) == 1:
        return in_runs(*sizes)
    return f"in one run each, the same repeat of {max(sizes)} that {(a if sizes[0] > 1 else b).label} has"


def _what_it_takes(runs: Sequence[Row]) -> str:
    if any(run["imported"] for run in runs):
        return f"Repeats would make it one: {ENOUGH} logs of each."
    return f"Repeats would make it one: write `repeats: {ENOUGH}` in the study."


def _looked_at(a: Group, b: Group, ratio: Ratio, margin: float | None) -> Verdict:
    """A verdict from the interval that is corrected for a look after each repeat."""
    if ratio.low is None or ratio.high is None:
        sentence = f"{a.label} and {b.label} are not tested yet: {ratio.method}."
        return Verdict(
            "inconclusive", sentence, ratio.ratio - 1, None, None, ratio.n, ratio.level, ratio.method
        )
    if margin:
        kind = beyond(ratio.low - 1, ratio.high - 1, margin)
    else:
        kind = "inconclusive" if ratio.low <= 1 <= ratio.high else "different"
    said = {
        "different": f"{a.label} is {'faster' if ratio.ratio > 1 else 'slower'} than {b.label}",
        "equivalent": f"{a.label} and {b.label} are equally fast within the margin",
    }.get(kind, f"{a.label} and {b.label} are {_OPEN if margin else 'not told apart'}")
    low, high = ratio.low - 1, ratio.high - 1
    sentence = f"{said}: {ratio.method}."
    return Verdict(kind, sentence, ratio.ratio - 1, low, high, ratio.n, ratio.level, ratio.method)
