"""Medians and intervals: what they are of, and that they cover what they say."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis import stats

positive = st.floats(0.001, 1000)


def test_few_runs_give_their_range_and_its_confidence() -> None:
    found = stats.over_runs([3.0, 1.0, 2.0])
    assert (found.median, found.low, found.high, found.n) == (2.0, 1.0, 3.0, 3)
    assert "75 % confidence" in found.method


def test_six_runs_reach_95_percent_with_their_range_and_nine_with_less() -> None:
    assert "96.9 %" in stats.over_runs(range(6)).method
    nine = stats.over_runs(range(9))
    assert (nine.low, nine.high) == (1, 7)
    assert "order-statistic" in nine.method
    assert "96.1 %" in nine.method


def test_one_run_has_no_interval_over_runs() -> None:
    found = stats.over_runs([5.0])
    assert (found.low, found.high) == (None, None)
    assert "one run" in found.method


def test_no_values_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one"):
        stats.over_runs([])
    with pytest.raises(ValueError, match="at least one"):
        stats.within_run([])


def test_the_interval_over_runs_covers_the_median_as_often_as_it_says() -> None:
    draw = np.random.default_rng(1)
    hits = 0
    for _ in range(1000):
        found = stats.over_runs(draw.exponential(size=9).tolist())
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= np.log(2) <= found.high
    assert 940 <= hits <= 980  # 96.1 %, give or take three standard deviations


def test_the_block_bootstrap_is_the_same_every_time_and_says_that_it_is_one_run() -> None:
    values = np.random.default_rng(0).normal(1, 0.1, 200).tolist()
    first, second = stats.within_run(values), stats.within_run(values)
    assert first == second
    assert "block bootstrap within the one run" in first.method
    assert first.low is not None
    assert first.high is not None
    assert first.low < first.median < first.high


def test_blocks_widen_the_interval_of_steps_that_hang_together() -> None:
    draw = np.random.default_rng(3)
    noise = draw.normal(size=400)
    hanging = [0.0]
    for shock in noise:
        hanging.append(0.9 * hanging[-1] + shock)
    shuffled = draw.permutation(hanging).tolist()

    def width(values: list[float]) -> float:
        found = stats.within_run(values)
        assert found.low is not None
        assert found.high is not None
        return found.high - found.low

    assert width(hanging) > 1.5 * width(shuffled)


def test_too_few_records_have_no_interval() -> None:
    found = stats.within_run([1.0, 2.0, 3.0])
    assert (found.median, found.low) == (2.0, None)
    assert "3 records" in found.method


@given(st.lists(positive, min_size=2, max_size=12))
def test_a_rates_interval_is_the_seconds_interval_turned_round(seconds: list[float]) -> None:
    rate = stats.over_runs(seconds).map(lambda s: 4096 / s)
    direct = stats.over_runs([4096 / s for s in seconds])
    assert rate.low == pytest.approx(direct.low)
    assert rate.high == pytest.approx(direct.high)
    assert rate.low is not None
    assert rate.high is not None
    assert rate.low <= rate.median * (1 + 1e-12)
    assert rate.median <= rate.high * (1 + 1e-12)


def test_without_an_interval_nothing_is_told_apart() -> None:
    sure, unsure = stats.over_runs([1.0, 1.1]), stats.over_runs([9.0])
    assert sure.overlaps(unsure)
    assert not sure.overlaps(stats.over_runs([2.0, 2.1]))
    assert sure.overlaps(stats.over_runs([1.1, 3.0]))


def test_several_runs_of_a_label_give_an_interval_over_runs_and_a_single_run_one_within() -> None:
    rows = [
        {"label": "auto", "step_seconds": 0.5, "counted_step_seconds": []},
        {"label": "auto", "step_seconds": 0.4, "counted_step_seconds": []},
        {"label": "flash", "step_seconds": 0.2, "counted_step_seconds": [0.1, 0.2, 0.3] * 20},
    ]
    found = stats.estimates(rows, lambda _row, seconds: 1 / seconds)
    assert (found["auto"].n, found["auto"].low, found["auto"].high) == (2, 2.0, 2.5)
    assert (found["flash"].n, found["flash"].median) == (1, 5.0)
    assert (
        stats.methods(found) == f"auto, n = 2: {found['auto'].method}; flash, n = 1: {found['flash'].method}"
    )
    assert stats.methods({"auto": found["auto"]}) == f"n = 2: {found['auto'].method}"


def test_a_rate_at_twice_the_step_time_is_half_the_runs_rate() -> None:
    assert stats.rate("mfu")({"mfu": 40.0, "step_seconds": 0.5}, 1.0) == 20.0


@pytest.mark.parametrize("count", [20, 99, 500])
def test_blocks_drawn_together_are_those_drawn_one_by_one(count: int) -> None:
    """As the bootstrap is usually written down."""
    values = np.random.default_rng(count).normal(1, 0.1, count)
    length = max(1, round(count ** (1 / 3)))
    draw, blocks = np.random.default_rng(0), np.lib.stride_tricks.sliding_window_view(values, length)
    medians = [
        np.median(blocks[draw.integers(0, len(blocks), -(-count // length))].ravel()[:count])
        for _ in range(1000)
    ]
    found = stats.within_run(list(values))
    assert [found.low, found.high] == list(np.quantile(medians, [(1 - 0.95) / 2, (1 + 0.95) / 2]))
