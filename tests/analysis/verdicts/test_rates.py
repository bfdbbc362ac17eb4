"""What may be said of rates: against the baseline, and in the ranking."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from analysis.verdicts.rates import ENOUGH, MOST_RANKED, rates
from analysis.wording import because, sentence
from tests.analysis.verdicts.rows import DESIGN, Row, repeated, run

NOISE = np.random.default_rng(5)


def single(label: str, factor: float, n: int = 60, **changes: Any) -> Row:
    """A single run whose step times go up and down as those of all others do."""
    shared = 0.4 + 0.01 * np.sin(np.arange(n) / 3)
    times = shared * factor * (1 + 0.002 * NOISE.standard_normal(n))
    steps = {"counted_step_seconds": times.tolist()}
    return run(label, float(np.median(times)), **steps | changes)


def test_single_runs_are_compared_by_their_medians_and_observed_not_ranked() -> None:
    comparison = rates([single("cudnn", 1.0), single("flash3", 1 / 1.2)])
    (compared,) = comparison.compared
    assert (compared.label, compared.baseline, compared.verdict.kind) == ("flash3", "cudnn", "observed")
    assert compared.ratio.level == "records of one run each"
    assert compared.ratio.ratio == pytest.approx(1.2, abs=0.002)
    assert compared.ratio.low is not None
    assert 1 < compared.ratio.low < 1.2
    assert f"{ENOUGH} runs of each" in sentence(compared.verdict)
    assert "faster" not in sentence(compared.verdict)
    assert comparison.rankings == ()


def test_a_single_run_on_another_gpu_than_the_baselines_is_said_to_be_on_one() -> None:
    """Of the same kernels on two GPUs of a node, one run was 1.3 % below the other."""

    def note(changes: Row, *baseline: Row) -> str:
        others = [
            single("cudnn", 1.0, repeat=n, **baseline_changes)
            for n, baseline_changes in enumerate(baseline, start=1)
        ]
        (compared,) = rates([*others, single("auto", 1.2, **changes)]).compared
        assert ("on different GPUs" in sentence(compared.verdict)) == bool(
            compared.single and compared.single.on_other_gpus
        )
        return because(compared.verdict, None, ())

    a, b = {"gpu_uuid": "a"}, {"gpu_uuid": "b"}
    plain = "not a finding: in one run each"
    assert note(a, b) == f"{plain}, on different GPUs, whose own difference it includes"
    for changes, other in ((a, a), (a, {}), ({}, {}), (a | {"resumed_step": 5}, b), (a | {"gpus": 2}, b)):
        assert note(changes, other) == plain
    assert note(a, b, a).endswith(" of the same repeat, on different GPUs, whose own difference it includes")
    assert note(b, b, a).endswith(" of the same repeat"), "of the same repeat, on the same GPU"
    against_median = "in one run against the median of 2"
    assert note(a | {"repeat": 9}, b, b) == f"{against_median}, on different GPUs: there is no interval"
    assert note(a | {"repeat": 9}, b, a) == f"{against_median}: there is no interval"


def test_repeats_are_paired_by_repeat_and_get_a_verdict_over_runs() -> None:
    drift = [1.0, 1.3, 0.9, 1.1]
    rows = repeated("cudnn", [0.40 * d for d in drift]) + repeated("flash", [0.42 * d for d in drift])
    (compared,) = rates(rows).compared
    assert compared.ratio.level == "runs"
    assert compared.ratio.n == 4
    assert compared.ratio.ratio == pytest.approx(0.40 / 0.42)
    assert compared.verdict.kind == "different"


def test_a_group_is_compared_with_its_own_counterpart() -> None:
    """(flash, 8192) with (cudnn, 8192), not with (cudnn, 4096), from which it differs in two ways."""
    rows = []
    for length in (4096, 8192):
        for backend in ("cudnn", "flash"):
            factors = {"attention": backend, "train.sequence_length": length}
            label = f"{backend}, {length}"
            rows += repeated(label, [0.4, 0.41, 0.42], factors=factors, tokens_per_step=length)
    comparison = rates(rows)
    assert [(rate.label, rate.baseline) for rate in comparison.compared] == [
        ("flash, 4096", "cudnn, 4096"),
        ("flash, 8192", "cudnn, 8192"),
    ]


def test_a_setting_is_compared_with_the_same_configuration_without_it() -> None:
    """Of `baseline: {compile: false, loss: plain}` each setting has two partners; only one is the baseline."""
    design = DESIGN | {"baseline": {"train.compile": False, "train.loss": "plain"}}
    seconds = {"eager": 0.50, "joined": 0.48, "compiled": 0.45, "both": 0.40, "unpaired": 0.30}
    factors: dict[str, dict[str, Any]] = {
        "eager": {"train.compile": False, "train.loss": "plain"},
        "joined": {"train.compile": False, "train.loss": "joined"},
        "compiled": {"train.compile": True, "train.loss": "plain"},
        "both": {"train.compile": True, "train.loss": "joined"},
        "unpaired": {"train.compile": True, "train.loss": "third"},
    }
    rows = [
        row
        for label, usual in seconds.items()
        for row in repeated(label, [usual, 1.01 * usual, 0.99 * usual], factors=factors[label], design=design)
    ]
    steps = rates(rows).steps
    assert [(step.setting, step.rate.label, step.rate.baseline) for step in steps] == [
        ("compile=true", "compiled", "eager"),
        ("compile=true", "both", "joined"),
        ("loss=joined", "joined", "eager"),
        ("loss=joined", "both", "compiled"),
        ("loss=third", "unpaired", "compiled"),
    ]
    assert [step.rate.ratio.ratio for step in steps] == pytest.approx(
        [0.50 / 0.45, 0.48 / 0.40, 0.50 / 0.48, 0.45 / 0.40, 0.45 / 0.30]
    )


def test_a_group_without_a_factor_of_the_baseline_is_in_no_step() -> None:
    """As where an axis was added to a study, or a log's name has one part less."""
    design = DESIGN | {"baseline": {"attention": "cudnn", "train.batch_size": 1}}
    rows = []
    for label, factors in {
        "cudnn": {"attention": "cudnn"},
        "flash": {"attention": "flash"},
        "cudnn, 1": {"attention": "cudnn", "train.batch_size": 1},
        "flash, 1": {"attention": "flash", "train.batch_size": 1},
        "cudnn, 4": {"attention": "cudnn", "train.batch_size": 4},
        "flash, 4": {"attention": "flash", "train.batch_size": 4},
    }.items():
        rows += repeated(label, [0.4, 0.41], factors=factors, design=design)
    steps = rates(rows).steps
    assert [(step.setting, step.rate.label, step.rate.baseline) for step in steps] == [
        ("flash", "flash", "cudnn"),
        ("flash", "flash, 1", "cudnn, 1"),
        ("flash", "flash, 4", "cudnn, 4"),
        ("batch_size=4", "cudnn, 4", "cudnn, 1"),
        ("batch_size=4", "flash, 4", "flash, 1"),
    ]


def test_settings_are_not_compared_apart_where_all_pairs_are_with_the_baseline() -> None:
    design = DESIGN | {"baseline": {"attention": "cudnn", "train.compile": False}}
    rows = []
    for backend, compiled in (("cudnn", False), ("flash", False), ("cudnn", True)):
        factors = {"attention": backend, "train.compile": compiled}
        rows += repeated(f"{backend}, {compiled}", [0.4, 0.41], factors=factors, design=design)
    assert len(rates(rows).compared) == 2
    assert rates(rows).steps == ()


def test_rates_are_of_tokens_not_of_steps() -> None:
    rows = repeated("cudnn", [0.4, 0.4, 0.41]) + repeated("flash", [0.8, 0.8, 0.82], tokens_per_step=8192)
    (compared,) = rates(rows).compared
    assert compared.ratio.ratio == pytest.approx(1.0)


def test_without_a_declared_baseline_nothing_is_compared_with_one() -> None:
    rows = repeated("cudnn", [0.4, 0.41], design=None) + repeated("flash", [0.4, 0.42], design=None)
    comparison = rates(rows)
    assert comparison.baseline is None
    assert comparison.compared == ()
    assert len(comparison.rankings) == 1


def test_a_verdict_that_the_ranking_does_not_confirm_is_said_to_be_of_one_test() -> None:
    """Pairs of two runs each: alone each of three is beyond the margin, among six pairs one is."""
    design = DESIGN | {"margins": {"tokens_per_second": 0.01}}

    def groups(*backends: str) -> list[Row]:
        faster = {"cudnn": (0.4, 0.5), "flash": (0.36, 0.453), "flex": (0.33, 0.42), "flash3": (0.3, 0.378)}
        return [row for name in backends for row in repeated(name, [*faster[name]], design=design)]

    comparison = rates(groups("cudnn", "flash", "flex", "flash3"))
    assert [rate.verdict.kind for rate in comparison.compared] == ["different"] * 3
    assert comparison.against_ranking == (
        "Each verdict is tested alone: corrected for all 6 pairs, the ranking does not tell `cudnn` from "
        "`flash` and `flex`.",
    )
    pair = rates(groups("cudnn", "flash"))
    assert [rate.verdict.kind for rate in pair.compared] == ["different"]
    assert pair.against_ranking == ()  # one test, which the ranking has, too


def test_a_margin_makes_groups_equivalent_only_if_all_runs_state_it() -> None:
    design = DESIGN | {"margins": {"tokens_per_second": 0.01}}
    rows = repeated("cudnn", [0.4, 0.5, 0.45], design=design)
    flash = repeated("flash", [0.4001, 0.5001, 0.4502], design=design)
    assert rates(rows + flash).compared[0].verdict.kind == "equivalent"
    flash[0]["design"] = DESIGN
    assert rates(rows + flash).compared[0].verdict.kind == "inconclusive"


def test_runs_that_are_not_comparable_get_no_verdict_no_interval_and_no_common_ranking() -> None:
    rows = repeated("cudnn", [0.4, 0.41, 0.4]) + repeated("auto", [0.41, 0.42, 0.41])
    rows += repeated("flash", [0.2, 0.21, 0.2], device="NVIDIA B200")
    comparison = rates(rows)
    auto, flash = comparison.compared
    assert auto.verdict.kind != "withheld"
    assert flash.verdict.kind == "withheld"
    assert "NVIDIA B200" in sentence(flash.verdict)
    assert (flash.shown.low, flash.shown.high) == (None, None)
    assert [set(ranking.tiers[0]) | set(ranking.tiers[-1]) for ranking in comparison.rankings] == [
        {"cudnn", "auto"}
    ]
    assert comparison.tiers("flash") == ()
    assert "NVIDIA B200" in " ".join(comparison.unranked)


def test_groups_of_several_sizes_are_ranked_apart_which_is_said_once() -> None:
    rows = [
        row
        for count in (1, 2, 4)
        for label in ("shard", "replicate")
        for row in repeated(f"{label} {count}", [0.4, 0.41, 0.4], processes=count, gpus=count)
    ]
    comparison = rates(rows)
    assert len(comparison.rankings) == 3
    assert comparison.unranked == (
        "Groups of different numbers of processes are not ranked together: their machines differ in size.",
    )


def test_a_group_that_ran_before_all_others_is_not_called_slower() -> None:
    """As a new user's six runs came out: one learning rate after the other, while the load changed."""
    cudnn = [run("cudnn", 0.4 + 0.1 * seed, seed=seed) for seed in (0, 1, 2)]
    flash = [run("flash", 0.2, seed=seed) for seed in (0, 1, 2)]
    for row in flash:
        row["started_at"], row["ended_at"] = (
            row[name].replace(hour=20) for name in ("started_at", "ended_at")
        )
    comparison = rates(cudnn + flash)
    assert [rate.verdict.kind for rate in comparison.compared] == ["withheld"]
    assert "drift" in sentence(comparison.compared[0].verdict)
    assert comparison.rankings == ()


def test_a_ratio_is_of_the_runs_that_its_verdict_is_of() -> None:
    """Two of eight keys are common, and in these two alone the group is faster."""
    rows = [run("cudnn", 0.4 + seed / 2500, seed=seed) for seed in range(8)]
    rows += [
        run("flash", (0.4 + seed / 2500) * (0.98 if seed < 8 else 1.05), seed=seed, repeat=1)
        for seed in range(6, 14)
    ]
    (compared,) = rates(rows).compared
    assert compared.verdict.kind == "different"
    assert compared.verdict.difference == pytest.approx(compared.ratio.ratio - 1)
    assert compared.verdict.difference < 0
    assert (compared.ratio.n, "unpaired, 8 and 8 runs" in compared.ratio.method) == (8, True)


def test_groups_with_repeats_are_not_compared_by_the_one_pair_that_they_share() -> None:
    steps = {"counted_step_seconds": [0.4] * 60}
    rows = [run("cudnn", 0.4 + seed / 2500, seed=seed, **steps) for seed in range(4)]
    rows += [run("flash", 0.5 + seed / 2500, seed=seed, **steps) for seed in range(3, 7)]
    (compared,) = rates(rows).compared
    assert (compared.verdict.kind, compared.ratio.level) == ("different", "runs")
    assert compared.ratio.ratio == pytest.approx(0.8, abs=0.01)


def test_logs_of_unknown_seeds_are_counted_and_paired_with_none() -> None:
    rows = [
        run(label, 0.4 + index / 100, seed=None, run_id=f"{label}{index}")
        for label in ("cudnn", "flash")
        for index in range(3)
    ]
    comparison = rates(rows)
    assert "unpaired, 3 and 3 runs" in comparison.compared[0].ratio.method
    assert comparison.compared[0].verdict.kind == "inconclusive"
    assert "unpaired, 3 and 3 runs" in sentence(next(iter(comparison.rankings[0].verdicts.values())))


def test_more_groups_than_can_be_compared_pair_by_pair_are_not_ranked() -> None:
    rows = [row for index in range(MOST_RANKED + 1) for row in repeated(f"g{index}", [0.4, 0.41])]
    comparison = rates(rows)
    assert comparison.rankings == ()
    assert "too many to rank" in comparison.unranked[0]


def test_an_interval_that_was_looked_at_after_each_repeat_is_wider() -> None:
    design_of_looks = DESIGN | {"until": {"tokens_per_second": 0.01, "at_most": 12}}
    times = [0.4, 0.41, 0.42, 0.4], [0.41, 0.412, 0.432, 0.41]
    plain, wide = (
        rates(repeated("cudnn", times[0], design=design) + repeated("flash", times[1], design=design))
        for design in (DESIGN, design_of_looks)
    )
    ratio, wide_ratio = plain.compared[0].ratio, wide.compared[0].ratio
    assert ratio.ratio == pytest.approx(wide_ratio.ratio)
    assert None not in (ratio.low, ratio.high, wide_ratio.low, wide_ratio.high)
    assert wide_ratio.high - wide_ratio.low > 1.2 * (ratio.high - ratio.low)  # type: ignore[operator]
    assert "10 looks" in wide_ratio.method


@pytest.mark.fault
def test_looks_are_corrected_for_though_later_launches_state_other_looks_or_none() -> None:
    """`until` was changed, or taken out of the study, after it had decided how many repeats there are."""
    first, second = ({"until": {"tokens_per_second": 0.01, "at_most": most}} for most in (6, 12))
    times = [0.4, 0.41, 0.42, 0.4], [0.41, 0.412, 0.432, 0.41]
    for design in (second, {"until": None}):
        rows = repeated("cudnn", times[0]) + repeated("flash", times[1])
        for row in rows:
            row["design"] = DESIGN | (first if row["repeat"] < 4 else design)
        comparison = rates(rows)
        assert "corrected for" in comparison.compared[0].ratio.method
        assert comparison.rankings[0].verdicts["cudnn", "flash"].method.count("test at 2 %")


def test_several_rankings_of_a_study_share_the_chance_of_a_false_claim() -> None:
    """Found at 5 % in a ranking by itself; one of two has 2.5 %."""
    slow, fast = [0.4, 0.401, 0.402], [0.385, 0.394, 0.39]
    rows = repeated("cudnn", slow) + repeated("flash", fast)
    rows_of_another = repeated("a", slow, device="A100") + repeated("b", slow, device="A100")
    ranking, comparison = rates(rows).rankings[0], rates(rows + rows_of_another)
    assert len(comparison.rankings) == 2
    assert ranking.verdicts["flash", "cudnn"].kind == "different"
    assert comparison.rankings[0].verdicts["flash", "cudnn"].kind == "inconclusive"
    assert "test at 2.5 %" in comparison.rankings[0].verdicts["flash", "cudnn"].method
