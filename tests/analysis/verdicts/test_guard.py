"""The guard names each thing that differs between runs, and what it breaks."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest

from analysis.stats.verdict import MarginTest, Verdict
from analysis.verdicts.guard import TOPICS, Difference, RunSet, among, differences, withheld
from analysis.verdicts.values import held_back
from analysis.wording import sentence
from tests.analysis.verdicts.compared_rows import NOON, row, runs
from tests.conftest import REPOSITORY

LATER = NOON + timedelta(hours=2)
BOTH = {"speed", "loss"}
UNKNOWN = {"power_limit_watts": None, "sm_mhz": None, "memory_mhz": None}

CHANGED = {
    "clocks_changed": True,
    "sm_mhz_low": 1650.0,
    "sm_mhz_high": 1980.0,
    "throttle_reasons": "none; sw_power_cap",
}


def differences_of(a: list[dict[str, Any]], b: list[dict[str, Any]]) -> list[Difference]:
    return differences(RunSet("A", a), RunSet("B", b))


def test_runs_of_the_same_code_machine_and_text_can_be_compared() -> None:
    assert differences_of(runs(), runs()) == []


@pytest.mark.parametrize(
    ("topic", "changes", "breaks", "words"),
    [
        ("commit", {"git_sha": "b" * 40, "code": "d" * 64}, BOTH, "A ran at commit aaaaaaaaaa, B at commit bbbbbbbbbb."),
        ("commit", {"git_sha": "b" * 40}, set(), "the code that their jobs ran is the same"),
        ("commit", {"git_sha": None, "code": None}, BOTH, "B outside a repository"),
        ("diff", {"git_dirty": True, "code": "d" * 64}, BOTH, "B ran with uncommitted changes."),
        ("diff", {"git_dirty": True}, set(), "the same"),
        ("device", {"device": "NVIDIA H100"}, {"speed"}, "A ran on NVIDIA H200, B ran on NVIDIA H100."),
        ("processes", {"processes": 4}, {"speed"}, "A trained with 1 process, B with 4 processes: their rates"),
        ("processes", {"nodes": 2}, {"speed"}, "B with 1 process on 2 nodes"),
        ("device", {"device": None}, {"speed"}, "The device of B was not recorded."),
        ("host", {"node": "nid002"}, {"speed"}, "A ran on nid001, B on nid002"),
        ("clocks", {"power_limit_watts": 500.0}, {"speed"}, "A ran at 700 W and 1980 MHz and 3201 MHz memory, B ran at 500 W"),
        ("clocks", UNKNOWN, set(), "The clock and power limit of B were not recorded."),
        ("throttling", {"slowed_seconds": 360.0}, {"speed"}, "Heat or the power supply throttled the clocks for 0 % of the wall time of A and 10 %"),
        ("throttling", {"power_capped_seconds": 0.0}, set(), "The power limit throttled the clocks for 50 %"),
        ("regime", CHANGED, set(), "changed while steps of B were counted (1,650 to 1,980 MHz; throttled by sw_power_cap or nothing)."),
        ("regime", CHANGED | {"throttle_reasons": None}, set(), "counted (1,650 to 1,980 MHz)."),
        ("regime", CHANGED | {"sm_mhz_low": None, "sm_mhz_high": None}, set(), "counted (throttled by sw_power_cap or nothing)."),
        ("starved", {"data_wait_percentage": 23.0}, {"speed"}, "The device of B waited for data for up to 23 % of the time"),
        ("users", {"device_users": 1}, {"speed"}, "Other processes used the GPU when runs of B started."),
        ("driver", {"software": {"torch": "2.13.0", "driver": "580.1"}}, {"speed"}, "B ran with 580.1"),
        ("software", {"software": {"torch": "2.12.0", "driver": "570.86"}}, {"speed"}, "torch 2.13.0 and 2.12.0"),
        ("software", {"software": {"python": "3.12.1", "torch": "2.13.0", "driver": "570.86"}}, set(), "python"),
        ("software", {"software": {"torch": "2.13.0", "driver": "570.86"}}, set(), "python only in A"),
        ("software", {"software": None}, set(), "The software of B was not recorded."),
        ("data", {"data_fingerprint": "e" * 32}, {"loss"}, "different texts"),
        ("data", {"data_fingerprint": None}, {"loss"}, "Which text B read was not recorded."),
        ("flop", {"flop_per_token": 54_760_000_000}, {"mfu"}, "A counts 51.54 GFLOP per token, B 54.76"),
        ("peak", {"peak_flops": 756e12}, {"mfu"}, "989.4 TFLOP/s"),
        ("padding", {"training_tokens_percentage": 20.0}, {"loss"}, "100.0 % of A's tokens"),
        ("steps", {"steps": 60}, set(), "A did 100 steps, B 60 of 100."),
        ("warmup", {"config": {"train": {"warmup_steps": 100}}}, set(), "All steps of B lie in the learning-rate warm-up"),
        ("order", {"started_at": LATER, "ended_at": LATER}, {"speed"}, "All runs of A ended before the first of B"),
        ("imported", {"imported": {"format": "lsai"}}, BOTH, "B was imported: measured by other code"),
        ("certificate", {"verdict": "wrong"}, {"speed"}, "Certificates say that auto computes something else."),
        ("certificate", {"verdict": None}, set(), "Runs of auto have no valid certificate."),
    ],
)  # fmt: skip
def test_a_difference_is_named_and_breaks_what_it_makes_incomparable(topic, changes, breaks, words) -> None:
    topic_differences = [
        difference for difference in differences_of(runs(), runs(**changes)) if difference.topic == topic
    ]
    assert len(topic_differences) == 1
    assert words in topic_differences[0].sentence
    assert topic_differences[0].breaks == breaks


def test_no_difference_depends_on_which_side_comes_first() -> None:
    other_runs = runs(
        git_sha="b" * 40, code=None, device="X", started_at=LATER, ended_at=LATER, verdict="wrong"
    )
    forward, reverse = differences_of(runs(), other_runs), differences_of(other_runs, runs())
    assert [(difference.topic, difference.breaks) for difference in forward] == [
        (difference.topic, difference.breaks) for difference in reverse
    ]


def test_hosts_break_no_comparison_if_both_sides_spread_over_several() -> None:
    a, b = ([row(node=f"nid{side}{n}", seed=n) for n in range(3)] for side in (1, 2))
    assert [(difference.topic, difference.breaks) for difference in differences_of(a, b)] == [
        ("host", frozenset())
    ]


def test_devices_mixed_alike_on_both_sides_are_only_said() -> None:
    rows = [row(), row(device="NVIDIA H100", seed=1)]
    (difference,) = differences_of(rows, rows)
    assert difference.breaks == frozenset()
    assert "each ran on different devices: NVIDIA H100, NVIDIA H200." in difference.sentence


def test_a_pair_on_two_devices_breaks_the_speed_though_both_sides_ran_on_both() -> None:
    """A block that was cut off on one machine was ended on another."""
    a = [row(), row(device="NVIDIA H100", repeat=2), row(repeat=3)]
    b = [row(device="NVIDIA H100"), row(repeat=2), row(repeat=3)]
    breaking = [difference for difference in differences_of(a, b) if difference.breaks]
    assert [(difference.topic, difference.breaks) for difference in breaking] == [("device", {"speed"})]
    text = "2 of 3 pairs of runs of A and B were on different devices: their ratio is that of these."
    assert breaking[0].sentence == text


def test_the_overview_says_that_blocks_were_of_two_commits_and_on_two_devices() -> None:
    blocks = [
        row(),
        row(label="math"),
        *(row(label=label, repeat=2, git_sha="b" * 40, device="X") for label in "ab"),
    ]
    assert [difference.sentence for difference in among(blocks)] == [
        "Completed runs ran on different devices: NVIDIA H200, X.",
        "Completed runs ran at different commits: aaaaaaaaaa, bbbbbbbbbb.",
    ]


def test_that_clocks_were_not_recorded_is_said_once_and_of_gpus_only() -> None:
    (difference,) = differences_of(runs(**UNKNOWN), runs(**UNKNOWN))
    assert difference.sentence == "The clock and power limits of A and B were not recorded."
    assert differences_of(runs(**UNKNOWN, gpus=0), runs(**UNKNOWN, gpus=0)) == []


def test_devices_that_both_waited_for_data_are_said_and_those_that_hardly_did_are_not() -> None:
    waits = differences_of(runs(data_wait_percentage=7.0), runs(data_wait_percentage=30.0))
    assert [(difference.topic, difference.breaks) for difference in waits] == [("starved", frozenset())] * 2
    assert differences_of(runs(data_wait_percentage=0.0), runs(data_wait_percentage=4.9)) == []


def test_a_clock_that_did_not_change_is_not_worth_a_word() -> None:
    steady = CHANGED | {"clocks_changed": False}
    assert differences_of(runs(**steady), runs()) == []


def test_the_overview_says_of_how_many_runs_the_times_are_worth_less() -> None:
    rows = [
        row(),
        row(**CHANGED),
        row(data_wait_percentage=23.4, label="flash"),
        row(outcome="failed", **CHANGED),
    ]
    assert [difference.sentence for difference in among(rows)] == [
        "sw_power_cap held back the GPU's clock while steps of 1 of 3 completed runs were counted; in 1, its lowest "
        "is over 15 % below its highest, or not all steps were held back alike (1,650 to 1,980 MHz; throttled by sw_power_cap or nothing).",
        "The device waited for data for up to 23 % of the time in 1 of 3 completed runs (flash): their speed is "
        "partly that of the data.",
    ]


def test_clocks_that_are_said_to_change_are_those_of_one_run() -> None:
    """1,470 to 1,935 MHz would be of two runs."""
    rows = [
        row(**CHANGED | {"sm_mhz_low": low, "sm_mhz_high": high})
        for low, high in ((1470.0, 1800.0), (1600.0, 1935.0))
    ]
    (difference,) = among(rows)
    assert "(at worst 1,470 to 1,800 MHz; throttled by" in difference.sentence
    rows[1] |= {"sm_mhz_low": 0.0}
    (difference,) = among(rows)
    assert "(at worst 0 to 1,935 MHz; throttled by" in difference.sentence
    rows[1] |= {"sm_mhz_low": None}
    (difference,) = among(rows)
    assert "(1,470 to 1,800 MHz; throttled by" in difference.sentence


def test_runs_whose_clock_was_held_back_without_changing_much_are_counted() -> None:
    rows = [row(throttle_reasons="sw_power_cap"), row(throttle_reasons="none"), row()]
    assert [difference.sentence for difference in among(rows)] == [
        "sw_power_cap held back the GPU's clock while steps of 1 of 3 completed runs were counted."
    ]


def test_padding_is_compared_for_equal_seeds_only() -> None:
    assert differences_of(runs(1), [row(seed=7, training_tokens_percentage=20.0)]) == []


def test_flop_per_token_is_compared_for_equal_models_only() -> None:
    other = row()["config"] | {"model": {"dim": 2048}}
    assert differences_of(runs(), runs(config=other, flop_per_token=10)) == []


def test_interleaved_runs_and_single_runs_have_no_order_that_breaks_anything() -> None:
    hour = timedelta(hours=1)
    a = [row(started_at=NOON + 2 * n * hour, ended_at=NOON + (2 * n + 1) * hour) for n in range(3)]
    b = [row(started_at=NOON + (2 * n + 1) * hour, ended_at=NOON + (2 * n + 2) * hour) for n in range(3)]
    assert differences_of(a, b) == []
    assert differences_of(a[:1], b[-1:]) == []


def test_a_verdict_is_withheld_with_its_numbers_and_the_reason() -> None:
    verdict = Verdict("different", MarginTest(0.02), -0.1, -0.11, -0.09, 3, "runs", "t")
    device_differences = differences_of(runs(), runs(device="NVIDIA H100"))
    assert withheld(verdict, device_differences, "loss") is verdict
    withheld_verdict = withheld(verdict, device_differences, "speed")
    assert (withheld_verdict.kind, withheld_verdict.difference, withheld_verdict.low) == (
        "withheld",
        -0.1,
        None,
    )
    assert "A ran on NVIDIA H200, B ran on NVIDIA H100." in sentence(withheld_verdict)


def test_the_documentation_lists_every_topic_with_what_it_breaks() -> None:
    page = (REPOSITORY / "docs" / "comparing.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| .+ \| (.+) \|$", page, re.MULTILINE)
    listed = {topic: effects for topics, effects in rows for topic in re.findall(r"`(\w+)`", topics)}
    assert set(TOPICS) <= set(listed)
    breaking_loss = {topic for topic in TOPICS if "loss" in listed[topic]}
    assert breaking_loss == {"commit", "diff", "data", "padding", "imported"}


def test_the_overview_of_a_study_says_what_differs_among_its_completed_runs() -> None:
    rows = [
        row(),
        row(device="NVIDIA H100", verdict=None, data_fingerprint="e" * 32),
        row(outcome="timeout", device="NVIDIA A100"),
    ]
    assert [difference.sentence for difference in among(rows)] == [
        "Completed runs ran on different devices: NVIDIA H100, NVIDIA H200.",
        "Completed runs read different texts of the same name: train.parquet.",
        "Completed runs of these backends have no valid certificate: auto.",
    ]
    assert among([row(outcome="timeout")]) == []


def test_packages_that_only_some_runs_had_are_said_and_not_only_other_versions() -> None:
    software, without_flash = {"torch": "2.13.0", "flash-attn": "2.8.3"}, {"torch": "2.13.0"}
    rows = [
        row(software=software),
        row(software=without_flash),
        row(software=without_flash),
        row(software=None),
    ]
    assert [difference.sentence for difference in among(rows)] == [
        "Only some of the completed runs had these packages: flash-attn (1 of 3)."
    ]
    versions = [row(software=software), row(software=software | {"torch": "2.12.0"})]
    assert [difference.sentence for difference in among(versions)] == [
        "Completed runs ran with different software: torch 2.12.0 / 2.13.0."
    ]
    assert among([row(software=software), row(software=software)]) == []


def test_throttling_is_of_all_the_wall_time_and_not_of_the_worst_run() -> None:
    """An hour without and ten minutes with it: 1 / 7 of the time, though all of one run."""
    runs = [row(power_capped_seconds=0.0), row(power_capped_seconds=600.0, wall_seconds=600.0)]
    assert held_back(runs, "power_capped_seconds") == pytest.approx(600 / 4200)
    assert held_back([row(power_capped_seconds=None)], "power_capped_seconds") is None
