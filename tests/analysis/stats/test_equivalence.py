"""Losses are called equivalent at the margin's edge in at most 5 % of studies, and so is 'different'."""

from __future__ import annotations

from math import inf, nan, sqrt

import numpy as np
import pytest

from analysis.stats.equivalence import Floor, losses, noise_floor
from analysis.wording import sentence
from tests.analysis.stats.simulate import autoregression

STEPS = range(5, 1001, 5)
MARGIN = 0.02


def run(level: float, draw: np.random.Generator | None = None, steps: range = STEPS) -> dict[int, float]:
    noise = draw.normal(0, 0.01, len(steps)) if draw else np.zeros(len(steps))
    return {step: float(level + 10 / step + noise[index]) for index, step in enumerate(steps)}


def kinds(effect: float, pairs: int, studies: int) -> list[str]:
    """Verdicts on pairs of runs whose losses differ by `true` on average, by 0.005 from seed to seed."""
    draw = np.random.default_rng([pairs, studies])
    differences = effect + draw.normal(0, 0.005, (studies, pairs))
    steps, baseline = range(950, 1001, 50), dict.fromkeys(range(950, 1001, 50), 1.0)
    return [
        losses(
            {seed: dict.fromkeys(steps, 1.0 + difference) for seed, difference in enumerate(study)},
            dict.fromkeys(range(pairs), baseline),
            MARGIN,
        ).kind
        for study in differences.tolist()
    ]


@pytest.mark.parametrize("pairs", [2, 3, 5, 10])
def test_at_the_edge_of_the_margin_each_claim_is_made_in_at_most_5_percent_of_studies(pairs: int) -> None:
    verdicts = kinds(MARGIN, pairs, 3000)
    for claim in ("equivalent", "different"):
        assert verdicts.count(claim) / 3000 <= 0.05 + 3 * 0.004


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.8])
@pytest.mark.parametrize("records", [24, 40])
def test_so_it_is_with_one_pair_whose_records_hang_together(records: int, correlation: float) -> None:
    draw = np.random.default_rng([records, int(10 * correlation)])
    noise = MARGIN + 0.015 * autoregression(draw, 1500, records, correlation)
    steps, verdicts = range(801, 801 + records), []
    for row in noise.tolist():
        a, b = dict(zip(steps, row, strict=True)), dict.fromkeys(steps, 0.0)
        verdicts.append(losses({"data": a}, {"data": b}, MARGIN).kind)
    assert verdicts.count("equivalent") / 1500 <= 0.05 + 3 * 0.0056
    assert verdicts.count("different") / 1500 <= 0.05 + 3 * 0.0056


def test_equal_backends_are_found_equivalent_with_three_seeds() -> None:
    verdicts = kinds(0.0, 3, 300)
    assert verdicts.count("equivalent") > 270
    assert "different" not in verdicts


def test_a_wrong_backend_is_different() -> None:
    draw = np.random.default_rng(1)
    a, b = ({seed: run(level, draw) for seed in range(3)} for level in (6.80, 6.69))
    verdict = losses(a, b, MARGIN)
    assert verdict.kind == "different"
    assert verdict.difference == pytest.approx(0.11, abs=0.005)
    assert (verdict.n, verdict.level) == (3, "runs")
    assert "beyond the margin of 0.02 nats" in sentence(verdict)
    assert "steps 805 to 1000" in sentence(verdict)


def test_one_pair_of_runs_speaks_of_these_two_alone() -> None:
    draw = np.random.default_rng(2)
    verdict = losses({1: run(6.7, draw)}, {1: run(6.7, draw)}, MARGIN)
    assert (verdict.kind, verdict.n, verdict.level) == ("equivalent", 1, "records of one run each")
    assert "40 records of one seed" in verdict.method


def test_one_pair_with_few_records_says_how_many_are_needed() -> None:
    steps = range(10, 201, 10)
    verdict = losses({1: run(1, steps=steps)}, {1: run(1, steps=steps)}, MARGIN)
    assert verdict.kind == "inconclusive"
    assert "4 records, at least 24 needed" in sentence(verdict)


def test_without_a_margin_nothing_is_concluded_and_the_sentence_says_what_to_declare() -> None:
    draw = np.random.default_rng(3)
    verdict = losses({1: run(6.8, draw)}, {1: run(6.7, draw)}, None)
    assert verdict.kind == "inconclusive"
    assert verdict.low is not None
    assert "Declare `margins: {loss: NATS}`" in sentence(verdict)


def test_what_is_neither_within_nor_beyond_is_inconclusive_and_not_equivalent() -> None:
    a = {seed: run(6.7 + shift) for seed, shift in enumerate((0.0, 0.03, -0.02))}
    b = {seed: run(6.7) for seed in range(3)}
    verdict = losses(a, b, MARGIN)
    assert verdict.kind == "inconclusive"
    assert "neither within nor beyond" in sentence(verdict)


@pytest.mark.refused
@pytest.mark.parametrize("value", [nan, inf])
def test_a_loss_that_is_not_finite_is_different(value: float) -> None:
    diverged = run(6.7) | {300: value}
    verdict = losses({1: diverged}, {1: run(6.7)}, MARGIN)
    assert verdict.kind == "different"
    assert "not finite at step 300" in sentence(verdict)
    assert losses({1: diverged}, {1: diverged}, MARGIN).kind == "inconclusive"


@pytest.mark.refused
def test_runs_of_other_seeds_or_data_are_not_paired() -> None:
    verdict = losses({(1, "text"): run(6.7)}, {(1, "other text"): run(6.7)}, MARGIN)
    assert (verdict.kind, verdict.n) == ("inconclusive", 0)
    assert "no two runs saw the same data" in sentence(verdict)


def test_only_steps_that_both_logged_are_paired() -> None:
    steps = range(5, 501, 5)
    verdict = losses(
        {seed: run(6.7, steps=steps) for seed in (1, 2)}, {seed: run(6.7) for seed in (1, 2)}, MARGIN
    )
    assert verdict.kind == "equivalent"
    assert "steps 405 to 500" in sentence(verdict)


def test_the_noise_of_repeats_widens_the_interval_of_one_pair() -> None:
    draw = np.random.default_rng(4)
    a, b = {1: run(6.7, draw)}, {1: run(6.7, draw)}
    verdict, floor = losses(a, b, MARGIN), noise_floor([[run(6.70), run(6.71), run(6.69)]])
    assert floor == Floor(pytest.approx(sqrt(2) * 0.01), 2)
    widened = losses(a, b, MARGIN, floor)
    assert (verdict.kind, widened.kind) == ("equivalent", "inconclusive")
    assert "Two repeats differ by 0.014 nats (standard deviation, pooled over both groups)" in sentence(
        widened
    )


def test_without_repeats_there_is_no_floor_and_runs_that_diverged_are_none() -> None:
    assert noise_floor([[run(1)], []]) is None
    assert noise_floor([[run(1), run(1) | {1000: nan}]]) is None
    assert noise_floor([[run(1), run(1), {}]]) == Floor(0.0, 1)


def test_identical_losses_are_equivalent() -> None:
    assert losses({1: run(6.7)}, {1: run(6.7)}, MARGIN).kind == "equivalent"
