"""Which groups are faster than which, with the chance of any false claim held to 5 %."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from itertools import combinations, permutations
from math import expm1

from analysis.stats.estimate import CONFIDENCE, median
from analysis.stats.paired import RUNS
from analysis.stats.student import log_ratio
from analysis.stats.verdict import Kind, PairTest, Verdict

Runs = Mapping[Hashable, float]


@dataclass(frozen=True)
class Ranking:
    """What may be said of the order of groups.

    Attributes:
        tiers: labels from the fastest to the slowest, in sets whose members cannot be told apart; a label can
            be in several. The order is that of medians; where groups share some keys and not all, it is
            that of the mean log ratio to the others.
        verdicts: of each pair of labels, the first over the second; each pair comes once, the faster one
            first, by the same rule.
    """

    tiers: tuple[tuple[str, ...], ...]
    verdicts: Mapping[tuple[str, str], Verdict]


def rank(groups: Mapping[str, Runs], error: float = 1 - CONFIDENCE) -> Ranking:
    """Compare all pairs of groups, corrected after Holm (1979), and put what cannot be told apart into tiers.

    A pair is tested on log seconds: paired where runs share keys, otherwise as two samples (see `log_ratio`).

    Args:
        groups: by label, seconds per step by what pairs runs (seed, repeat), of two runs or more.
        error: chance of any false claim; `repeats.error_of_a_look` where looks decided how many runs
            there are.
    """
    ordered = sorted(groups, key=lambda label: median(list(groups[label].values())))
    pairs = list(combinations(ordered, 2))
    keys = [frozenset(groups[label]) for label in groups]
    if any(one != other and one & other for one, other in combinations(keys, 2)):
        ahead = {
            (one, other): log_ratio(groups[one], groups[other]).mean.value
            for one, other in permutations(ordered, 2)
        }
        ordered.sort(key=lambda label: -sum(ahead[label, other] for other in groups if other != label))
        pairs = [pair if ahead[pair] >= 0 else (pair[1], pair[0]) for pair in combinations(ordered, 2)]
    tests = {(one, other): log_ratio(groups[one], groups[other]) for one, other in pairs}
    # Adjusted p values: the i-th smallest of m times m - i, never below the one before (Holm 1979).
    p_values, so_far = {pair: test.mean.p_value() for pair, test in tests.items()}, 0.0
    for place, (pair, p) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        p_values[pair] = so_far = max(so_far, min(1.0, p * (len(tests) - place)))

    verdicts = {}
    among = f" among {len(tests)} pairs" if len(tests) > 1 else ""
    for pair, test in tests.items():
        mean, low, high = (expm1(log) for log in (test.mean.value, *test.mean.interval(CONFIDENCE)))
        method = (
            f"95 % t interval of the log ratio, {test.how}; test at {100 * error:.2g} % after Holm{among}"
        )
        kind: Kind = "different" if p_values[pair] <= error else "inconclusive"
        reason = PairTest(p_values[pair], len(tests), test.how)
        verdicts[pair] = Verdict(kind, reason, mean, low, high, test.n, RUNS, method, groups=pair)
    apart = {frozenset(pair) for pair, verdict in verdicts.items() if verdict.kind == "different"}
    # The tiers: the largest sets without a pair that is apart, by insert and absorb (Piepho 2004).
    sets = [frozenset(ordered)] if ordered else []
    for couple in apart:
        split = [
            part
            for members in sets
            for part in ([members - {x} for x in couple] if couple <= members else [members])
        ]
        sets = [members for members in dict.fromkeys(split) if not any(members < other for other in split)]
    order = {label: i for i, label in enumerate(ordered)}
    tiers = [tuple(sorted(members, key=order.__getitem__)) for members in sets]
    tiers.sort(key=lambda tier: [order[label] for label in tier])
    return Ranking(tuple(tiers), verdicts)
