"""How many repeats a difference needs, and whether the machine drifted."""

from __future__ import annotations

from math import log

import numpy as np
import pytest

from analysis.stats.machines import drift
from analysis.stats.repeats import repeats_needed
from analysis.wording import drift as drift_in_words


@pytest.mark.parametrize(("spread", "difference"), [(0.01, 0.01), (0.02, -0.03), (0.01, 0.05)])
def test_that_many_repeats_find_the_difference_as_often_as_stated_and_one_less_does_not(
    spread: float, difference: float
) -> None:
    from scipy.special import stdtrit

    n = repeats_needed(spread, difference, power=0.9)
    assert n
    draw = np.random.default_rng(n)

    def power(pairs: int) -> float:
        logs = draw.normal(log(1 + difference), spread, (20_000, pairs))
        t = logs.mean(axis=1) / (logs.std(axis=1, ddof=1) / np.sqrt(pairs))
        return float((np.sign(difference) * t > stdtrit(pairs - 1, 0.975)).mean())

    assert power(n) >= 0.89
    assert power(n - 1) < 0.91


def test_more_comparisons_and_smaller_differences_need_more_repeats() -> None:
    assert repeats_needed(0.01, 0.01) == 11
    assert repeats_needed(0.01, 0.01, comparisons=36) == 22
    assert repeats_needed(0.01, 0.005, power=0.8) == 34
    assert repeats_needed(10, 0.001) is None
    assert repeats_needed(0.0, 0.01) == 2


@pytest.mark.refused
@pytest.mark.parametrize(("spread", "difference"), [(0.1, 0.0), (-0.1, 0.1), (0.1, -1.0)])
def test_a_difference_of_nothing_or_a_negative_spread_is_an_error(spread: float, difference: float) -> None:
    with pytest.raises(ValueError, match="above -1 and not zero"):
        repeats_needed(spread, difference)


def blocks(
    draw: np.random.Generator, count: int, groups: int, slowdown: float
) -> dict[tuple[str, int], float]:
    """A study of interleaved blocks: each shares a state, and steps get slower by `whole` from first to last."""
    state = draw.normal(0, 0.01, count) + slowdown * np.linspace(0, 1, count)
    return {
        (f"g{group}", block): float(np.exp(group + state[block] + draw.normal(0, 0.005)))
        for group in range(groups)
        for block in range(count)
    }


@pytest.mark.parametrize("count", [3, 5, 12])
def test_drift_is_claimed_in_5_percent_of_studies_without_any(count: int) -> None:
    draw = np.random.default_rng(count)
    share = np.mean([drift(blocks(draw, count, 3, 0.0)).drifted for _ in range(600)])
    assert 0.05 - 3 * 0.009 <= share <= 0.05 + 3 * 0.009


@pytest.mark.parametrize(("count", "slowdown", "power"), [(3, 0.3, 0.5), (5, 0.08, 0.8), (12, 0.05, 0.8)])
def test_drift_that_is_there_is_found(count: int, slowdown: float, power: float) -> None:
    draw = np.random.default_rng(count)
    estimates = [drift(blocks(draw, count, 3, slowdown)) for _ in range(100)]
    assert np.mean([estimate.drifted for estimate in estimates]) >= power
    assert np.median([estimate.change or 0 for estimate in estimates]) == pytest.approx(
        np.expm1(slowdown), rel=0.2
    )
    assert any("The machine drifted: steps became" in drift_in_words(estimate) for estimate in estimates)


@pytest.mark.fault
def test_a_group_that_a_later_launch_adds_is_no_drift() -> None:
    """Its blocks are its own, and nothing tells a slow group from a machine that became slow."""
    steady = {("a", block): 1.0 + block % 3 / 10_000 for block in range(1, 6)}
    slower = {("b", block): 2.0 + block % 3 / 10_000 for block in range(6, 10)}
    estimate = drift(steady | slower)
    assert not estimate.drifted
    assert abs(estimate.change or 0) < 0.001
    bridged = drift(steady | slower | {("b", 5): 2.0})
    assert bridged == estimate
    assert "(5 of 9 blocks, without 1 group that did not run in all of them)" in drift_in_words(estimate)


@pytest.mark.fault
@pytest.mark.parametrize("state", [0.0, 0.005, 0.015])
@pytest.mark.parametrize(
    ("groups", "until", "later"), [(8, 6, (1, 7, 8, 9)), (3, 3, (3, 4, 5, 6)), (11, 3, (1, 4, 5))]
)
def test_blocks_that_few_groups_ran_in_are_no_drift(
    groups: int, until: int, later: tuple[int, ...], state: float
) -> None:
    """The block of a single run is far less certain than one of many runs: no line goes through both."""
    draw = np.random.default_rng(groups)
    cells = [(f"g{group}", block) for group in range(groups) for block in range(1, until + 1)]
    cells += [("late", block) for block in later]
    drifted = 0
    for _ in range(600):
        states = draw.normal(0, state, 10)
        drifted += drift(
            {cell: float(np.exp(states[cell[1]] + draw.normal(0, 0.005))) for cell in cells}
        ).drifted
    assert drifted / 600 <= 0.05 + 3 * 0.009


def test_a_run_that_is_missing_is_no_drift() -> None:
    """The slow group's runs are missing from the last blocks, which makes those blocks' mean faster."""
    study = blocks(np.random.default_rng(1), 6, 2, 0.0)
    del study["g1", 5], study["g1", 4]
    estimate = drift(study)
    assert not estimate.drifted
    assert drift_in_words(estimate).startswith("No drift was found")


def test_two_blocks_are_not_tested() -> None:
    estimate = drift({("a", 0): 1.0, ("a", 1): 2.0})
    assert estimate.p is None
    assert drift_in_words(estimate) == "Drift was not tested: 2 blocks, at least 3 are needed."


def test_blocks_without_a_group_in_common_are_counted_all() -> None:
    """As of launches that ran one backend after the other: there are as many blocks as the setup says."""
    apart = drift({("a", 0): 1.0, ("b", 1): 1.0, ("c", 2): 1.0})
    assert drift_in_words(apart) == (
        "Drift was not tested: of 3 blocks, no two have a group in common; 3 must."
    )
    pair = drift({("a", 0): 1.0, ("a", 1): 1.0, ("b", 2): 1.0})
    assert drift_in_words(pair) == (
        "Drift was not tested: of 3 blocks, no more than 2 have a group in common; 3 must."
    )
