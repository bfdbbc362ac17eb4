"""Pairs are runs of one seed and one repeat, of a group and of the baseline that differs by its factors alone."""

from math import exp
from types import SimpleNamespace

import pytest

from analysis.stats.repeats import repeats_needed
from runner.inputs.design import Design, Margins
from runner.plan import precision
from runner.plan.precision import comparisons, spread
from tests.analysis.fabricate import plan

BASELINE = {"attention": "auto"}


def run(attention, rate, seed=0, repeat=1):
    factors = {"attention": attention, "train.learning_rate": rate, "seed": seed}
    name, group = f"{attention}-{rate}-{seed}-{repeat}", f"{attention}-{rate}"
    return plan(name, attention=attention, seed=seed, repeat=repeat, factors=factors, group=group)


def test_a_group_is_compared_with_the_baseline_at_its_own_other_factors():
    runs = [run(attention, rate) for attention in ("auto", "flash") for rate in (0.1, 0.2)]
    seconds = {run.run_id: number + 1.0 for number, run in enumerate(runs)}
    groups = comparisons(runs, BASELINE, seconds)
    assert [(group.group, group.base, group.pairs) for group in groups] == [
        ("flash-0.1", "auto-0.1", ((3.0, 1.0),)),
        ("flash-0.2", "auto-0.2", ((4.0, 2.0),)),
    ]
    assert [group.label for group in groups] == ["flash learning_rate=0.1", "flash learning_rate=0.2"]


def test_runs_pair_by_seed_and_repeat_and_only_where_both_completed():
    keys = [(0, 1), (0, 2), (1, 1), (1, 2)]
    runs = [run(attention, 0.1, *key) for attention in ("auto", "flash") for key in keys]
    seconds = {run.run_id: 10.0 * run.config.seed + run.repeat for run in runs}
    del seconds["auto-0.1-0-2"], seconds["flash-0.1-1-1"]
    (group,) = comparisons(runs, BASELINE, seconds)
    assert group.pairs == ((1.0, 1.0), (12.0, 12.0))
    assert group.seeds == 2


def test_a_group_without_a_baseline_is_left_out():
    assert comparisons([run("auto", 0.1), run("flash", 0.2)], BASELINE, {}) == []


def test_the_spread_is_pooled_over_groups_and_takes_no_account_of_their_ratios():
    runs = [run(name, 0.1, repeat=n) for name in ("auto", "flash", "flex") for n in (1, 2, 3)]
    times = {"auto": [1.0] * 3, "flash": [exp(-0.01), 1.0, exp(0.01)], "flex": [2.0] * 3}
    seconds = {run.run_id: times[run.config.attention][run.repeat - 1] for run in runs}
    sigma, pairs = spread(comparisons(runs, BASELINE, seconds))
    assert (sigma, pairs) == (pytest.approx(0.01 / 2**0.5), 6)
    assert spread(comparisons(runs[:1], BASELINE, seconds)) is None


def test_the_forecast_is_corrected_for_all_pairs_of_groups_as_the_ranking_is(monkeypatch):
    """Five groups are ten pairs in the ranking, though only four have a baseline."""
    names = ("auto", "flash", "flex", "tiled", "custom")
    runs = [run(name, 0.1, repeat=n) for name in names for n in (1, 2, 3)]
    seconds = {run.run_id: exp(0.01 * (7 * n % 5)) for n, run in enumerate(runs)}
    monkeypatch.setattr(precision, "seconds_per_token", lambda *_: seconds)
    margins = Margins(tokens_per_second="1%")
    design = Design(repeats=3, order="interleaved", baseline=BASELINE, margins=margins, until=None)
    study = SimpleNamespace(name="tiny")
    planned = SimpleNamespace(runs=[(run, None) for run in runs], root=None, study=study)
    sigma, _ = spread(comparisons(runs, BASELINE, seconds))
    needed = repeats_needed(sigma, 0.01, comparisons=10)
    assert needed > repeats_needed(sigma, 0.01, comparisons=4)
    assert f"each cell needs about {needed} repeats" in " ".join(precision.repeats_forecast(planned, design))
