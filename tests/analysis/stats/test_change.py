"""A change beyond the margin is claimed in at most 5 % of studies at its edge, and so is none."""

from __future__ import annotations

from dataclasses import replace
from math import exp

import numpy as np
import pytest

from analysis.stats.equivalence import change
from analysis.stats.estimate import Estimate
from analysis.stats.paired import (
    RECORDS,
    ROUNDS,
    RUNS,
    paired_rounds,
    paired_runs,
    ratio_of_medians,
    single_pair,
)
from analysis.wording import sentence
from tests.analysis.stats.simulate import autoregression


def runs(values: list[float]) -> dict[object, float]:
    return dict(enumerate(values))


@pytest.mark.parametrize("n", [2, 4, 8])
@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize("edge", [0.98, 1.02])
def test_at_the_edge_of_the_margin_each_claim_is_made_in_at_most_5_percent(
    n: int, paired: bool, edge: float
) -> None:
    draw = np.random.default_rng([n, paired, edge < 1])
    before = draw.normal(0, 0.003, (2000, n))
    after = draw.normal(-np.log(edge), 0.003, (2000, n))
    kinds = [
        change(runs(x), runs(y) if paired else {str(i): v for i, v in enumerate(y)}, 0.02).kind
        for x, y in zip(np.exp(before).tolist(), np.exp(after).tolist(), strict=True)
    ]
    assert kinds.count("different") / 2000 <= 0.05 + 3 * 0.005
    assert kinds.count("equivalent") / 2000 <= 0.05 + 3 * 0.005


def test_a_regression_beyond_the_margin_is_different_and_negative() -> None:
    verdict = change(runs([1.0, 1.1, 1.2]), runs([1.1, 1.21, 1.32]), 0.02)
    assert verdict.kind == "different"
    assert verdict.difference == pytest.approx(1 / 1.1 - 1)
    assert "slower by more than the margin of 2 %" in sentence(verdict)
    assert "paired over 3 runs each" in verdict.method


def test_no_change_is_said_only_within_the_margin() -> None:
    before, after = runs([1.0, 1.1, 1.2]), runs([1.001, 1.099, 1.2])
    assert change(before, after, 0.02).kind == "equivalent"
    assert change(before, after, 0.001).kind == "inconclusive"


def test_a_margin_is_a_share_of_the_rate_before_on_both_sides() -> None:
    """18 % slower lies within 20 %, though one over 0.82 is 1.22."""
    before = runs([1.0, 1.001, 1.002])
    slower, faster = (runs([seconds / rate for seconds in (1.0, 1.0011, 1.0021)]) for rate in (0.82, 1.18))
    assert change(before, slower, 0.2).kind == change(before, faster, 0.2).kind == "equivalent"


def test_runs_without_common_keys_are_compared_unpaired() -> None:
    verdict = change({"a": 1.0, "b": 1.01}, {"c": 1.0, "d": 1.01, "e": 1.02}, 0.01)
    assert verdict.kind == "inconclusive"
    assert "unpaired" in verdict.method


def test_a_single_run_on_a_side_is_inconclusive() -> None:
    verdict = change({1: 1.0}, {1: 2.0}, 0.01)
    assert (verdict.kind, verdict.difference) == ("inconclusive", -0.5)


@pytest.mark.refused
@pytest.mark.parametrize(("before", "margin"), [({}, 0.1), ({1: 1.0}, 0.0)])
def test_no_runs_or_no_margin_is_an_error(before: dict[object, float], margin: float) -> None:
    with pytest.raises(ValueError, match="margin above zero"):
        change(before, {1: 1.0}, margin)


def test_single_runs_are_compared_by_the_medians_that_tables_show() -> None:
    """Step by step, b looks faster: its steps are in another order. By its median it is slower."""
    a, b = [1.0, 2.0, 9.0, 1.9] * 20, [9.5, 1.0, 2.1, 2.05] * 20
    assert np.median(np.divide(a, b)) > 1
    comparison = single_pair(b, a)
    assert comparison.ratio == pytest.approx(1.9493589 / 2.0748494)  # of two in the middle the geometric mean
    assert (comparison.n, comparison.level) == (1, RECORDS)


def test_the_ends_of_two_medians_combine_as_independent_errors_of_logarithms() -> None:
    """Triangles of 3, 4, 5 and 5, 12, 13, in percent: below with the end above of the other, and the reverse."""
    over = Estimate(2.0, 2 * exp(-0.03), 2 * exp(0.05), 1, "")
    under = Estimate(1.0, exp(-0.12), exp(0.04), 1, "")
    assert ends_of(ratio_of_medians(over, under)) == pytest.approx((2.0, 2 * exp(-0.05), 2 * exp(0.13)))
    assert ends_of(ratio_of_medians(under, over)) == pytest.approx((0.5, exp(-0.13) / 2, exp(0.05) / 2))
    assert ends_of(ratio_of_medians(over, Estimate(1.0, None, None, 1, ""))) == (2.0, None, None)


def ends_of(ratio: Estimate) -> tuple[float, float | None, float | None]:
    assert not ratio.is_range
    return ratio.median, ratio.low, ratio.high


def test_the_range_of_a_ratio_is_from_its_smallest_to_its_largest() -> None:
    """A range says nothing of errors: 1.9 to 2.2 over 0.8 to 1.1 may be anything from 1.727 to 2.75."""
    over, under = Estimate(2.0, 1.9, 2.2, 1, "", is_range=True), Estimate(1.0, 0.8, 1.1, 1, "")
    for first, second in ((over, under), (replace(over, is_range=False), replace(under, is_range=True))):
        ratio = ratio_of_medians(first, second)
        assert (ratio.low, ratio.high) == pytest.approx((1.9 / 1.1, 2.2 / 0.8))
        assert ratio.is_range and "no interval" in ratio.method


def test_the_interval_of_single_runs_holds_the_truth_in_at_least_95_percent() -> None:
    draw = np.random.default_rng(2)
    logs = 0.01 * autoregression(draw, 2000, 38, 0.5)
    hits = 0
    for a, b in zip(np.exp(logs[:1000]).tolist(), (1.012 * np.exp(logs[1000:])).tolist(), strict=True):
        comparison = single_pair(a, b)
        assert comparison.low is not None and comparison.high is not None
        hits += comparison.low <= 1.012 <= comparison.high
    assert 0.93 <= hits / 1000 <= 0.99


def test_too_few_records_of_a_single_run_have_no_interval() -> None:
    comparison = single_pair([1.0, 1.0], [2.0] * 40)
    assert (comparison.ratio, comparison.low, comparison.n) == (2.0, None, 1)
    assert comparison.method == "medians of one run each, no interval: 2 records, at least 24 are needed"


@pytest.mark.refused
def test_a_run_without_records_is_an_error() -> None:
    with pytest.raises(ValueError):
        single_pair([1.0], [])


def test_what_slows_a_whole_round_down_cancels_in_the_ratio_of_its_calls() -> None:
    rounds = [1.0, 9.0, 2.0, 7.0, 3.0, 8.0, 4.0]
    comparison = paired_rounds(rounds, [1.25 * seconds for seconds in rounds])
    assert (comparison.ratio, comparison.low, comparison.high) == pytest.approx((1.25, 1.25, 1.25))
    assert (comparison.n, comparison.level) == (7, ROUNDS)
    assert comparison.method == "paired by round, 95 % interval between order statistics"


def test_a_ratio_by_round_turned_around_is_its_inverse_and_five_rounds_have_no_interval() -> None:
    a, b = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [2.0, 2.1, 3.3, 3.9, 6.0, 6.6]
    forward, reverse = paired_rounds(a, b), paired_rounds(b, a)
    assert forward.low and forward.high
    assert (reverse.ratio, reverse.low, reverse.high) == pytest.approx(
        (1 / forward.ratio, 1 / forward.high, 1 / forward.low)
    )
    five_rounds = paired_rounds(a[:5], b[:5])
    assert (five_rounds.low, five_rounds.high, five_rounds.method) == (
        None,
        None,
        "paired by round, no interval",
    )


@pytest.mark.parametrize("n", [2, 3, 5, 10, 40])
def test_paired_ratios_over_runs_hold_the_truth_in_95_percent(n: int) -> None:
    """Each group's steps are late at times, the runs of a pair share what the machine does."""
    draw = np.random.default_rng(n)
    delays = 1 + 0.02 * draw.exponential(size=(2, 1500, n))
    shared, hits = np.exp(draw.normal(0, 0.1, (1500, n))), 0
    for a, b in zip(shared * delays[0], shared * delays[1] * 1.05, strict=True):
        comparison = paired_runs(list(zip(a, b, strict=True)))
        assert comparison.low is not None
        assert comparison.high is not None
        hits += comparison.low <= 1.05 <= comparison.high
    assert 0.935 <= hits / 1500 <= 0.975


def test_one_pair_of_runs_has_no_interval() -> None:
    comparison = paired_runs([(1.0, 2.0)])
    assert (comparison.ratio, comparison.low, comparison.level) == (2.0, None, RUNS)
    assert comparison.method == "no interval: one pair of runs"


@pytest.mark.refused
def test_no_pairs_are_an_error() -> None:
    with pytest.raises(ValueError, match="at least one pair"):
        paired_runs([])


def test_the_interval_of_31_rounds_holds_although_neighbours_are_alike() -> None:
    """A GPU's clocks change more slowly than rounds do; order statistics alone would hold in 78 of 100 processes."""
    logs = 0.01 * autoregression(np.random.default_rng(0), 400, 31, 0.6)
    comparisons = [paired_rounds([1.0] * 31, list(np.exp(sample))) for sample in logs]
    assert np.mean([sample.low <= 1 <= sample.high for sample in comparisons]) >= 0.92


def test_a_range_that_is_left_out_is_none() -> None:
    """A caption would name a range that is not drawn."""
    wide = Estimate(
        1.0, 0.1, 3.0, 1, "no interval, but the range of all 30 records of one run", is_range=True
    )
    assert (wide.telling.low, wide.telling.is_range) == (None, False)
    several = replace(wide, n=3)
    assert several.telling == several
    assert wide.map(lambda value: 1 / value).is_range
