"""Intervals within one run hold the median in 95 of 100 runs, or are refused."""

from __future__ import annotations

import numpy as np
import pytest

from analysis.stats.estimate import (
    FEWEST_RECORDS,
    error_of_mean,
    half_width,
    interval_of_mean,
    within_run,
)
from analysis.stats.student import quantiles
from tests.analysis.stats.simulate import autoregression, held_within, with_spikes

RUNS = 10_000
CORRELATIONS = (0.0, 0.2, 0.4, 0.6, 0.8)


def test_the_simulated_share_is_that_of_the_intervals_themselves() -> None:
    values = 5 + autoregression(np.random.default_rng(1), 200, 30, 0.6)
    estimates = [within_run(list(row)) for row in np.exp(values)]
    assert sum(estimate.low <= np.exp(5) <= estimate.high for estimate in estimates) / 200 == held_within(
        values, 5.0
    )


@pytest.mark.parametrize("n", range(24, 41))
def test_it_holds_the_median_in_95_percent_of_runs_whatever_the_autocorrelation(n: int) -> None:
    draw = np.random.default_rng(n)
    shares = [held_within(autoregression(draw, RUNS, n, correlation), 0.0) for correlation in CORRELATIONS]
    assert all(0.93 <= share <= 0.97 for share in shares), shares
    assert 0.935 <= np.mean(shares) <= 0.97


@pytest.mark.parametrize("n", [60, 100, 200])
def test_so_it_does_in_longer_runs_which_are_taken_in_batches(n: int) -> None:
    draw = np.random.default_rng(n)
    shares = [held_within(autoregression(draw, 2000, n, correlation), 0.0) for correlation in (0.0, 0.5, 0.8)]
    assert all(0.93 <= share <= 0.98 for share in shares), shares


@pytest.mark.parametrize("n", [24, 32, 40])
def test_rare_spikes_do_not_spoil_it(n: int) -> None:
    draw = np.random.default_rng(n)
    median = float(np.median(with_spikes(draw, draw.standard_normal(1_000_000))))
    shares = [
        held_within(with_spikes(draw, autoregression(draw, RUNS, n, correlation)), median)
        for correlation in (0.0, 0.4, 0.8)
    ]
    assert all(0.93 <= share <= 0.97 for share in shares), shares


def test_jitter_over_a_slow_swing_is_allowed_for_in_long_runs() -> None:
    """Not an autoregression of order one: its first autocorrelation, 0.45, hides that it lasts."""
    draw = np.random.default_rng(5)
    swing, jitter = autoregression(draw, 2000, 200, 0.9), draw.standard_normal((2000, 200))
    assert 0.93 <= held_within(swing + jitter, 0.0) <= 0.98


def test_skewed_noise_changes_nothing_because_ranks_decide() -> None:
    """The exponential of every value has its interval's ends at the exponentials of the ends."""
    row = autoregression(np.random.default_rng(2), 1, 33, 0.5)[0]
    assert half_width(row, 0.95) == half_width(np.exp(row), 0.95)
    symmetric, skewed = within_run(list(row + 9)), within_run(list(np.exp(row + 9)))
    assert skewed.low == pytest.approx(np.exp(symmetric.low), rel=0.01)
    assert skewed.high == pytest.approx(np.exp(symmetric.high), rel=0.01)


@pytest.mark.parametrize("n", range(3, 24))
def test_fewer_than_24_records_have_no_interval_and_the_reason_says_how_many_are_needed(n: int) -> None:
    estimate = within_run([1.0] * n)
    assert (estimate.low, estimate.high) == (None, None)
    assert estimate.method == f"no interval: one run, {n} records, at least {FEWEST_RECORDS} are needed"


def test_even_the_range_of_fewer_records_holds_the_median_too_seldom() -> None:
    """At an autocorrelation of 0.8 and 16 records: which is why they are refused, whatever they look like."""
    values = autoregression(np.random.default_rng(3), RUNS, 16, 0.8)
    assert ((values.min(1) <= 0) & (values.max(1) >= 0)).mean() < 0.93


def test_correlated_records_are_worth_fewer_independent_ones() -> None:
    draw = np.random.default_rng(4)
    variances = [error_of_mean(autoregression(draw, 500, 200, case)).variance for case in (0.0, 0.8)]
    independent, correlated = (float(1 / np.median(case)) for case in variances)
    assert 150 < independent < 220
    assert 15 < correlated < 27  # at 0.8 the mean of 200 records varies as that of 22 independent ones


@pytest.mark.parametrize("n", [24, 28, 33, 40, 100])
def test_the_interval_of_the_mean_holds_it_in_95_percent_of_runs_too(n: int) -> None:
    draw = np.random.default_rng(n)
    for correlation in (0.0, 0.4, 0.8):
        values = autoregression(draw, 4000, n, correlation)
        error = error_of_mean(values)
        half = quantiles(0.975, error.freedom) * np.sqrt(error.variance)
        assert 0.93 <= (np.abs(values.mean(1)) <= half).mean() <= 0.98
    assert interval_of_mean(values[0].tolist(), 0.95) == (
        pytest.approx(values[0].mean() - half[0]),
        pytest.approx(values[0].mean() + half[0]),
    )
    assert interval_of_mean([1.0] * 23, 0.95) is None


def test_the_sentence_says_that_it_speaks_of_one_run() -> None:
    values = np.random.default_rng(0).normal(1, 0.1, 38).tolist()
    estimate = within_run(values)
    assert estimate.low is not None
    assert estimate.high is not None
    assert estimate.low < estimate.median < estimate.high
    assert estimate.n == 1
    assert "38 records of one run" in estimate.method
    assert "not what another run would give" in estimate.method


def test_an_interval_that_is_the_whole_range_says_so() -> None:
    slow = within_run(np.exp(np.linspace(0, 0.1, 30)).tolist())
    assert (slow.low, slow.high) == (pytest.approx(1), pytest.approx(np.exp(0.1)))
    assert slow.method.startswith("no interval, but the range of all 30 records of one run, whose")


def test_records_that_are_all_the_same_have_an_interval_of_no_width() -> None:
    estimate = within_run([0.5] * 30)
    assert (estimate.low, estimate.median, estimate.high) == (0.5, 0.5, 0.5)


def test_no_records_are_an_error() -> None:
    with pytest.raises(ValueError, match="at least one"):
        within_run([])
