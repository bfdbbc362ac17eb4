"""The ranking claims a difference where none is in at most 5 % of studies, and finds those that are there."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from analysis.stats.ranking import rank
from analysis.stats.student import log_ratio
from analysis.wording import sentence

STUDIES = 600


def false_claims(draw: np.random.Generator, groups: int, runs: int, paired: bool, noise: str) -> float:
    """The share of studies of equal groups in which any two are told apart."""
    shape = (STUDIES, groups, runs)
    logs = {
        "normal": lambda: draw.normal(0, 0.05, shape),
        "late": lambda: np.log(1 + 0.05 * draw.exponential(size=shape)),
    }[noise]()
    common = draw.normal(0, 0.2, (STUDIES, 1, runs)) if paired else 0.0  # what all groups share at a time
    seconds = np.exp(logs + common).tolist()
    claims = 0
    for study in seconds:
        groups_of_runs = {
            str(group): {(run if paired else (group, run)): value for run, value in enumerate(values)}
            for group, values in enumerate(study)
        }
        claims += any(verdict.kind == "different" for verdict in rank(groups_of_runs).verdicts.values())
    return claims / STUDIES


@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize(
    ("groups", "runs"), [(2, 2), (2, 3), (2, 10), (3, 5), (4, 3), (5, 2), (6, 4), (9, 2), (9, 3), (9, 10)]
)
def test_equal_groups_are_told_apart_in_at_most_5_percent_of_studies(
    groups: int, runs: int, paired: bool
) -> None:
    draw = np.random.default_rng([groups, runs, paired])
    noise = "normal" if runs % 2 else "late"
    share = false_claims(draw, groups, runs, paired, noise)
    assert share <= 0.05 + 3 * 0.009  # the share of 600 studies varies by 0.009


def test_over_all_those_simulations_the_share_is_below_5_percent() -> None:
    draw = np.random.default_rng(7)
    shares = [false_claims(draw, g, n, True, "normal") for g, n in ((2, 3), (3, 3), (5, 3), (3, 6), (2, 6))]
    assert 0.02 <= np.mean(shares) <= 0.055


@pytest.mark.parametrize(("count", "spread"), [(2, 1.0), (2, 10.0), (3, 3.0)])
def test_two_runs_against_ten_are_no_better_a_reason_to_claim_something(count: int, spread: float) -> None:
    """Where Welch's degrees of freedom claim a difference in 10 % of studies and more."""
    draw = np.random.default_rng(count)
    small, large = draw.normal(0, 0.01 * spread, (4000, count)), draw.normal(0, 0.01, (4000, 10))
    ratios = [
        log_ratio(dict(enumerate(np.exp(a))), {str(i): value for i, value in enumerate(np.exp(b))})
        for a, b in zip(small, large, strict=True)
    ]
    assert all(ratio.how.startswith("unpaired") for ratio in ratios)
    assert np.mean([ratio.mean.p_value() <= 0.05 for ratio in ratios]) <= 0.06


def timings(**groups: list[float]) -> dict[str, dict[object, float]]:
    return {label: dict(enumerate(values)) for label, values in groups.items()}


def test_what_differs_is_said_and_the_faster_comes_first() -> None:
    ranking = rank(timings(slow=[1.10, 1.21, 1.05, 1.155], fast=[1.0, 1.1, 0.96, 1.05]))
    verdict = ranking.verdicts["fast", "slow"]
    assert verdict.kind == "different"
    assert sentence(verdict).startswith(
        "fast is faster than slow: +9.84 % (+9.35 to +10.34 %; p < 0.0001), paired"
    )
    assert "paired over 4 runs each" in sentence(verdict)
    assert verdict.difference == pytest.approx(0.0985, abs=0.002)
    assert ranking.tiers == (("fast",), ("slow",))


def test_pairing_finds_what_a_shared_drift_hides() -> None:
    drift = np.array([1.0, 1.2, 1.4, 1.6, 1.8])
    fast, slow = drift * [1.0, 1.002, 0.999, 1.001, 1.0], drift * [1.02, 1.019, 1.021, 1.02, 1.02]
    paired = rank(timings(a=fast.tolist(), b=slow.tolist()))
    unpaired = rank({"a": dict(enumerate(fast)), "b": {str(i): s for i, s in enumerate(slow)}})
    assert paired.verdicts["a", "b"].kind == "different"
    assert unpaired.verdicts["a", "b"].kind == "inconclusive"
    assert "unpaired, 5 and 5 runs" in sentence(unpaired.verdicts["a", "b"])


def test_groups_that_cannot_be_told_apart_share_a_tier_and_one_can_be_in_two() -> None:
    """The middle one is told apart from neither, but the outer two are from each other."""
    ranking = rank(
        timings(
            c=[1.021, 1.019, 1.022, 1.018],
            a=[1.001, 0.999, 1.002, 0.998],
            b=[1.00, 1.02, 1.03, 0.99],
        )
    )
    assert ranking.tiers == (("a", "b"), ("b", "c"))
    assert ranking.verdicts["a", "c"].kind == "different"
    assert ranking.verdicts["a", "b"].kind == ranking.verdicts["b", "c"].kind == "inconclusive"


def test_holm_corrects_for_the_number_of_pairs() -> None:
    """The same two groups are told apart alone, and not among eight others."""
    draw = np.random.default_rng(11)
    pair = {"a": [1.0, 1.01, 0.99, 1.0], "b": [1.02, 1.045, 1.005, 1.032]}
    others = {f"o{i}": (1 + draw.normal(0, 0.3, 4) ** 2).tolist() for i in range(8)}
    assert rank(timings(**pair)).verdicts["a", "b"].kind == "different"
    ranking = rank(timings(**pair, **others))
    assert ranking.verdicts["a", "b"].kind == "inconclusive"
    assert "after Holm among 45 pairs" in ranking.verdicts["a", "b"].method
    assert len(ranking.verdicts) == len(list(combinations(range(10), 2)))


def test_runs_that_looks_were_taken_at_are_ranked_at_a_smaller_error() -> None:
    groups = timings(a=[1.0, 1.0, 1.0, 1.0], b=[1.01, 1.02, 1.035, 1.02])
    verdict, corrected = rank(groups).verdicts["a", "b"], rank(groups, error=0.01).verdicts["a", "b"]
    assert (verdict.kind, corrected.kind) == ("different", "inconclusive")
    assert "p = 0.025" in sentence(corrected)
    assert "test at 1 % after Holm" in corrected.method


def test_identical_groups_are_not_told_apart() -> None:
    ranking = rank(timings(a=[1.0, 1.0, 1.0], b=[1.0, 1.0, 1.0]))
    assert ranking.verdicts["a", "b"].kind == "inconclusive"
    assert ranking.tiers == (("a", "b"),)


def test_groups_that_lack_a_slow_machine_are_not_first_for_that() -> None:
    """By its median b is the fastest; in both blocks that it shares with a, a is."""
    a = {1: 1.000, 2: 1.101, 3: 2.0}
    b = {1: 1.010, 2: 1.112}
    c = {1: 1.100, 2: 1.211, 3: 2.2}
    ranking = rank({"b": b, "a": a, "c": c})
    assert [tier[0] for tier in ranking.tiers] == ["a", "b", "c"]
    verdict = ranking.verdicts["a", "b"]
    assert (verdict.kind, verdict.n) == ("different", 2)
    assert verdict.difference == pytest.approx((1.01 / 1 * 1.112 / 1.101) ** 0.5 - 1)
