"""Looks at growing numbers of pairs: what their intervals hold, and when they are expected to end."""

from math import exp

import numpy as np
import pytest

from analysis.stats.repeats import look, repeats_expected
from analysis.wording import look as look_in_words


@pytest.mark.parametrize("seeds", [1, 2, 4])
@pytest.mark.parametrize(("spread", "target"), [(0.004, 0.01), (0.006, 0.01), (0.02, 0.03), (0.0, 0.01)])
def test_a_look_with_that_spread_reaches_the_target_then_and_not_before(spread, target, seeds):
    expected = repeats_expected(spread, target, 30, seeds)

    def reached(repeats):
        n = repeats * seeds
        x = spread * ((n - 1) / (n - n % 2)) ** 0.5  # n values at x, -x or 0 whose standard deviation is it
        logs = [x, -x] * (n // 2) + [0.0] * (n % 2)
        return look([(1.0, exp(logarithm)) for logarithm in logs], target, 30, seeds).reached

    assert reached(expected)
    assert expected * seeds < 3 + seeds or not reached(expected - 1)


def test_a_target_that_is_out_of_reach_is_said_to_be():
    assert repeats_expected(0.1, 0.01, at_most=12) is None


@pytest.mark.parametrize("at_most", [3, 5, 12, 30])
def test_the_interval_at_which_one_stops_holds_the_truth_in_95_percent(at_most: int) -> None:
    """Stopped at the first look that is narrow enough, for targets from far below the noise to far above it."""
    draw = np.random.default_rng(at_most)
    for target in np.geomspace(0.002, 0.05, 5):
        hits = 0
        for pairs in np.exp(draw.normal(0, 0.01, (400, at_most))).tolist():
            for n in range(3, at_most + 1):
                interval = look([(1.0, ratio) for ratio in pairs[:n]], target, at_most)
                if interval.reached:
                    break
            assert interval.low is not None
            assert interval.high is not None
            hits += interval.low <= 1 <= interval.high
        assert hits / 400 >= 0.95 - 2.5 * 0.011


def test_a_look_says_whether_the_target_is_reached() -> None:
    pairs = [(1.0, 1.1), (1.0, 1.101), (1.0, 1.099), (1.0, 1.1)]
    assert look_in_words(look(pairs[:2], 0.01, 12)) == "2 of at least 3 pairs of runs: no interval yet"
    interval = look(pairs, 0.01, 12)
    assert interval.reached
    assert interval.ratio == pytest.approx(1.1, rel=1e-3)
    assert "target 1 % reached; corrected for 10 looks" in look_in_words(interval)
    assert not look(pairs, 0.0001, 12).reached


@pytest.mark.refused
@pytest.mark.parametrize(("target", "at_most"), [(0.0, 12), (0.01, 2)])
def test_a_target_of_nothing_or_too_few_repeats_is_an_error(target: float, at_most: int) -> None:
    with pytest.raises(ValueError, match="at_most of at least 3"):
        look([], target, at_most)


@pytest.mark.parametrize(("seeds", "looks"), [(1, 10), (2, 11), (3, 12), (5, 12)])
def test_looks_are_counted_by_repeats_not_by_pairs(seeds, looks):
    pairs = [(1.0, 1.0), (1.0, 1.01), (1.0, 0.99)]
    assert look_in_words(look(pairs, 0.01, at_most=12, seeds=seeds)).endswith(f"corrected for {looks} looks")
