"""Whether the devices of one study differ: rarely said where they do not, and found where they do."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from analysis.stats.machines import Devices, TimedRun, devices


def study(
    draw: np.random.Generator, repeats: int, count: int, spread: float, noise: Sequence[float]
) -> list[TimedRun]:
    """Runs of a group for each noise, on devices by chance; the slowest takes longer by `spread`."""
    effects = np.log1p(spread) * np.linspace(0, 1, count)
    places = draw.integers(count, size=(len(noise), repeats))
    errors = draw.standard_normal(places.shape)
    return [
        TimedRun(f"g{group}", f"d{place}", float(np.exp(group / 10 + effects[place] + deviation * error)))
        for group, deviation in enumerate(noise)
        for place, error in zip(places[group], errors[group], strict=True)
    ]


def simulated(studies: int, repeats: int, count: int, spread: float, noise: Sequence[float]) -> list[Devices]:
    draw = np.random.default_rng(repeats + count)
    comparisons = [devices(study(draw, repeats, count, spread, noise)) for _ in range(studies)]
    return [comparison for comparison in comparisons if comparison.p is not None]


@pytest.mark.parametrize(
    ("repeats", "count", "noise"),
    [
        (5, 4, [0.0027] * 9),
        (5, 4, [0.0027] * 8 + [0.09]),
        (5, 4, [0.002, 0.003, 0.004, 0.005, 0.006, 0.002, 0.003, 0.004, 0.008]),
        (3, 2, [0.01] * 3),
        (3, 4, [0.0027] * 8 + [0.09]),
        (2, 4, [0.003] * 9),
    ],
)
def test_devices_that_do_not_differ_are_said_to_in_5_percent_of_studies(
    repeats: int, count: int, noise: list[float]
) -> None:
    comparisons = simulated(600, repeats, count, 0.0, noise)
    assert np.mean([comparison.differ for comparison in comparisons]) <= 0.05 + 0.02


@pytest.mark.parametrize("noise", [[0.0027] * 9, [0.0027] * 8 + [0.09]])
def test_devices_2_percent_apart_are_found_and_the_interval_holds_that(noise: list[float]) -> None:
    """As a study of nine groups and five repeats on four GPUs was, one of whose groups was far noisier."""
    comparisons = simulated(60, 5, 4, 0.02, noise)
    assert all(comparison.differ for comparison in comparisons)
    assert (
        np.mean(
            [
                comparison.low <= 0.02 <= comparison.high
                for comparison in comparisons
                if comparison.low and comparison.high
            ]
        )
        >= 0.95
    )
    assert np.median([comparison.spread or 0 for comparison in comparisons]) == pytest.approx(0.02, rel=0.1)


def test_a_far_noisier_group_is_left_out_and_named() -> None:
    runs = study(np.random.default_rng(1), 5, 4, 0.02, [0.003, 0.003, 0.003, 0.003, 0.2])
    comparison = devices(runs)
    assert comparison.noisy == ("g4",)
    assert comparison == Devices(
        **(vars(devices([run for run in runs if run.group != "g4"])) | {"noisy": ("g4",)})
    )


def test_a_slow_group_does_not_make_its_device_slow() -> None:
    """The slow group ran on d1 alone, where it says nothing of devices."""
    others = [
        TimedRun(group, device, 1.0 + n / 1e4) for group in "ab" for n, device in enumerate(("d0", "d1") * 2)
    ]
    slow = [TimedRun("slow", "d1", 9.0 + n / 1e4) for n in range(3)]
    comparison = devices(others + slow)
    assert comparison.spread is not None
    assert comparison.spread < 0.001


def test_a_group_of_one_run_says_nothing() -> None:
    runs = study(np.random.default_rng(2), 4, 2, 0.02, [0.003, 0.003, 0.003])
    assert devices([*runs, TimedRun("single", "d7", 5.0)]) == devices(runs)


def test_devices_that_no_group_links_are_not_compared() -> None:
    unlinked_runs = [TimedRun(group, f"of-{group}", 1.0 + n / 1e4) for group in "ab" for n in range(5)]
    assert devices(unlinked_runs).p is None


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_single_device_or_too_few_runs_are_not_tested(count: int) -> None:
    on_one_device = [TimedRun("a", "d0", 1.0 + n / 1e3) for n in range(9)]
    few_runs = [TimedRun("a", f"d{n}", 1.0 + n / 1e3) for n in range(count)]
    for runs in (on_one_device, few_runs):
        assert devices(runs).p is devices(runs).spread is devices(runs).low is None
        assert not devices(runs).differ


@pytest.mark.parametrize("deviation", [0.01, 0.1])
def test_devices_that_one_run_alone_links_with_the_rest_say_nothing(deviation: float) -> None:
    """Their effects take up its noise whole: what is left looks as quiet as all others."""
    shared = [
        TimedRun(f"g{n}", name, 1 + 0.001 * n * (name == "b")) for n in range(4) for name in ("a", "b", "c")
    ]
    bridge = [
        TimedRun("tiled", name, seconds)
        for name, seconds in (("a", 1), ("d", 1 + deviation), ("e", 1 - deviation))
    ]
    separate = [TimedRun("there", name, 2.0) for name in ("d", "d")]
    comparison = devices([*shared, *bridge, *separate])
    assert (comparison.count, comparison.effects) == (3, pytest.approx(devices(shared).effects))
    assert comparison.spread is not None and comparison.spread < 0.01
