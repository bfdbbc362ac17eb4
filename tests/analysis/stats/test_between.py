"""Intervals over runs hold the median in 95 of 100 studies, from two runs to forty."""

from __future__ import annotations

from math import log, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.stats.estimate import median, over_runs
from tests.analysis.stats.simulate import held_between

positive = st.floats(0.001, 1000)
SAMPLES = 20_000


@pytest.mark.parametrize("n", [2, 3, 5, 6, 7, 8, 11, 40])
def test_the_simulated_share_is_that_of_the_intervals_themselves(n: int) -> None:
    logs = np.random.default_rng(n).exponential(size=(100, n))
    estimates = [over_runs(np.exp(row).tolist()) for row in logs]
    assert all(estimate.low and estimate.high for estimate in estimates)
    hits = sum(log(estimate.low or 0) <= log(2) <= log(estimate.high or 0) for estimate in estimates)
    assert hits / 100 == held_between(logs, log(2))


@pytest.mark.parametrize("n", [*range(2, 13), 16, 25, 40])
def test_it_holds_the_median_in_95_percent_of_studies(n: int) -> None:
    """Normal logarithms; steps that are 5 % longer at times (exponential); exponential logarithms; heavy tails."""
    draw = np.random.default_rng(n)
    shape = (SAMPLES, n)
    shares = {
        "lognormal": held_between(draw.normal(0, 0.3, shape), 0.0),
        "normal": held_between(np.log(draw.normal(1, 0.05, shape)), 0.0),
        "late": held_between(np.log(1 + 0.05 * draw.exponential(size=shape)), log(1 + 0.05 * log(2))),
        "heavy": held_between(draw.standard_t(3, shape), 0.0),
    }
    assert all(0.93 <= share <= 0.97 for share in shares.values()), shares


def test_three_runs_have_students_interval_of_their_logs() -> None:
    estimate = over_runs([1.0, 2.0, 4.0])
    half = 4.302653 * log(2) / sqrt(3)  # logarithms are 0, log 2 and 2 log 2; t of two degrees of freedom
    assert (estimate.median, estimate.n) == (2.0, 3)
    assert estimate.low == pytest.approx(2 * np.exp(-half), rel=1e-6)
    assert estimate.high == pytest.approx(2 * np.exp(half), rel=1e-6)
    assert (
        estimate.method
        == "95 % t interval of the geometric mean over 3 runs, which assumes that their logs are normal"
    )


def test_from_six_runs_the_ends_lie_between_order_statistics() -> None:
    """Of 6 values the range holds the median with 96.9 %, the inner four with 78 %: the ends are near the range's."""
    six_runs, nine_runs = over_runs([1, 2, 3, 4, 5, 6]), over_runs([1, 2, 3, 4, 5, 6, 7, 8, 9])
    assert six_runs.low is not None
    assert six_runs.high is not None
    assert 1 < six_runs.low < 1.3
    assert 5.6 < six_runs.high < 6
    assert nine_runs.low is not None
    assert 2 < nine_runs.low < 2.2  # the second to the eighth hold it with 96.1 %
    assert "order statistics of 9 runs" in nine_runs.method


def test_one_run_has_no_interval_over_runs() -> None:
    estimate = over_runs([5.0])
    assert (estimate.low, estimate.high) == (None, None)
    assert estimate.method == "no interval: one run"


def test_no_values_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one"):
        over_runs([])


@given(st.lists(positive, min_size=2, max_size=12))
def test_the_median_and_interval_of_rates_are_those_of_the_seconds_turned_round(seconds: list[float]) -> None:
    rate = over_runs(seconds).map(lambda s: 4096 / s)
    direct = over_runs([4096 / s for s in seconds])
    assert rate.median == pytest.approx(direct.median)
    assert rate.low == pytest.approx(direct.low)
    assert rate.high == pytest.approx(direct.high)
    assert rate.low is not None
    assert rate.high is not None
    assert rate.low <= rate.median * (1 + 1e-9)
    assert rate.median <= rate.high * (1 + 1e-9)


def test_the_median_of_an_even_number_is_the_geometric_mean_of_the_two_in_the_middle() -> None:
    assert median([1, 2, 8, 100]) == 4
    assert median([3, 1, 2]) == 2
    assert median([-2, -1, 1, 9]) == 0  # values without logarithms have the arithmetic mean


def test_values_that_are_not_all_positive_have_an_interval_too() -> None:
    estimate = over_runs([-1.0, 0.0, 1.0])
    assert estimate.low == pytest.approx(-4.302653 / sqrt(3))
