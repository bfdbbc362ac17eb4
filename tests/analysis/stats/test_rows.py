"""Estimates of labelled rows."""

from __future__ import annotations

import pytest

from analysis import stats
from analysis.stats.rows import paired_by
from analysis.wording import methods


def test_several_runs_of_a_label_give_an_interval_over_runs_and_a_single_run_one_within() -> None:
    rows = [
        {"label": "auto", "step_seconds": 0.5, "counted_step_seconds": []},
        {"label": "auto", "step_seconds": 0.4, "counted_step_seconds": []},
        {"label": "flash", "step_seconds": 0.2, "counted_step_seconds": [0.1, 0.2, 0.3] * 20},
    ]
    estimates = stats.estimates(rows, lambda _row, seconds: 1 / seconds)
    assert estimates["auto"] == stats.over_runs([2.0, 2.5])
    assert (estimates["flash"].n, estimates["flash"].median) == (1, pytest.approx(5.0))
    assert (
        methods(estimates)
        == f"n = 2 (auto): {estimates['auto'].method}; n = 1 (flash): {estimates['flash'].method}"
    )
    estimates_by_label = {
        "DDP": estimates["auto"],
        "FSDP2, gathered once": estimates["auto"],
        "flash": estimates["flash"],
    }
    assert methods(estimates_by_label).startswith("n = 2 (DDP; FSDP2, gathered once): ")
    assert methods({"auto": estimates["auto"]}) == f"n = 2: {estimates['auto'].method}"


def test_a_rate_at_twice_the_step_time_is_half_the_runs_rate() -> None:
    assert stats.rate("mfu")({"mfu": 40.0, "step_seconds": 0.5}, 1.0) == 20.0


def paired(*keys: tuple[int | None, int]) -> list[object]:
    runs = [
        {"run_id": f"r{index}", "seed": seed, "repeat": repeat} for index, (seed, repeat) in enumerate(keys)
    ]
    return list(paired_by(runs))


def test_runs_are_paired_by_seed_and_repeat_where_nothing_makes_that_unsure() -> None:
    assert paired((0, 1), (0, 2), (1, 1)) == [(0, 1), (0, 2), (1, 1)]
    assert paired((0, 1), (0, 1)) == ["r0", "r1"], "several runs share a seed and repeat"
    assert paired((None, 1), (None, 2)) == ["r0", "r1"], "logs whose seeds nobody knows"
    assert paired((0, 1), (None, 1)) == [(0, 1), "r1"]
    assert paired((None, 1)) == [(None, 1)], "one log can be held against one other"
