"""What runs say of their devices: energy, power, clocks, and the process that was slowest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from analysis.store.collect import collect
from model.record.records import RankRecord
from tests.analysis.conftest import Ask
from tests.analysis.fabricate import Folder, plan


def measured(root: Path, sql: Ask, *records: dict[str, Any]) -> dict[str, Any]:
    """A run's measures after a first record, which never counts, and these, of 5 steps of 0.4 s each."""
    folder = Folder(root, plan("r1"))
    folder.start()
    folder.step(10, steps=10, energy_joules=1000.0, sm_mhz=300.0, throttle_reasons="hw_slowdown")
    for index, fields in enumerate(records):
        folder.step(15 + 5 * index, **fields)
    collect(root)
    (run,) = sql("FROM runs")
    return run


def test_a_run_has_the_energy_of_all_its_steps_and_the_power_of_those_that_count(
    root: Path, sql: Ask
) -> None:
    fields = {"energy_joules": 1200.0, "data_wait_seconds": 0.5}
    run = measured(root, sql, fields, fields | {"data_wait_seconds": 0.1})
    assert (run["energy_joules"], run["power_watts"]) == (3400.0, 585.366)
    assert run["joules_per_token"] == pytest.approx(2400 / (10 * run["tokens_per_step"]))
    assert run["data_wait_percentage"] == 15.0
    assert [row["power_watts"] for row in sql("FROM steps ORDER BY step")] == [1000 / 4.1, *[1200 / 2.1] * 2]


def test_records_shorter_than_a_second_have_no_power(root: Path, sql: Ask) -> None:
    """On an H200 limited to 700 W, prefills of 0.1 s had 711 to 754 W by energy over their own time.

    Older versions kept no reading across records.
    """
    fields = {"energy_joules": 80.0, "step_seconds": 0.02}
    run = measured(root, sql, fields, fields)
    assert (run["energy_joules"], run["power_watts"]) == (1160.0, None)
    assert [row["power_watts"] for row in sql("FROM steps ORDER BY step")] == [1000 / 4.1, None, None]


def test_power_is_of_the_records_that_are_long_enough(root: Path, sql: Ask) -> None:
    short_record, long_record = {"energy_joules": 80.0, "step_seconds": 0.02}, {"energy_joules": 1200.0}
    assert measured(root, sql, short_record, long_record)["power_watts"] == 571.429


def test_the_energy_of_a_run_is_unknown_where_that_of_a_step_is(root: Path, sql: Ask) -> None:
    run = measured(root, sql, {"energy_joules": 1200.0}, {})
    assert (run["energy_joules"], run["power_watts"]) == (None, 571.429)


@pytest.mark.parametrize(
    ("clocks", "reasons", "changed"),
    [
        ((1980.0, 1740.0), ("", ""), False),
        ((1980.0, 1600.0), ("", ""), True),
        ((1980.0, 1980.0), ("", "sw_power_cap"), True),
        ((1980.0, 1600.0), (None, None), True),
        ((1980.0, 1980.0), (None, None), False),
        ((None, None), ("", ""), False),
        ((None, None), (None, None), None),
    ],
)
def test_a_run_says_whether_its_clock_or_what_held_it_back_changed_after_the_warm_up(
    root: Path, sql: Ask, clocks: tuple[Any, ...], reasons: tuple[Any, ...], changed: bool | None
) -> None:
    pairs = zip(clocks, reasons, strict=True)
    run = measured(root, sql, *({"sm_mhz": mhz, "throttle_reasons": reason} for mhz, reason in pairs))
    assert run["clocks_changed"] is changed
    assert (run["sm_mhz_high"], run["sm_mhz_low"]) == clocks
    reason_names = [reason or "none" for reason in reasons if reason is not None]
    assert run["throttle_reasons"] == ("; ".join(dict.fromkeys(reason_names)) or None)


def test_a_run_names_the_process_that_was_slowest_most_often_and_its_node(root: Path, sql: Ask) -> None:
    """Of the deciding attempt alone: another one's processes may have been elsewhere."""
    folder = Folder(root, plan("r1", steps=200))
    for attempt, nodes in enumerate((("a", "b", "c"), ("b", "c", "d")), start=1):
        folder.start(attempt=attempt, ranks=[RankRecord(node=node) for node in nodes], gpus=3)
    every = {"slowest_rank": 0, "slowest_rank_seconds": 0.9, "other_ranks_seconds": 0.1}
    for step in (10, 20, 30, 40, 50):
        folder.step(step, steps=10, **every)
    for step, rank, seconds in ((60, 2, 0.33), (65, 2, 0.36), (70, 1, 0.3), (75, 2, 0.45), (80, 1, 0.3)):
        fields = {"slowest_rank": rank, "slowest_rank_seconds": seconds, "other_ranks_seconds": 0.3}
        folder.step(step, attempt=2, **fields)
    collect(root)
    (run,) = sql("FROM runs")
    rank_fields = {name: value for name, value in run.items() if "rank" in name}
    assert rank_fields == {
        "slowest_rank": 2, "slowest_rank_node": "d", "slowest_rank_records": 3, "ranked_records": 5,
        "slowest_rank_percentage": 20.0,
    }  # fmt: skip
    assert [row["slowest_rank"] for row in sql("FROM steps ORDER BY step")] == [0] * 5 + [2, 2, 1, 2, 1]


@pytest.mark.parametrize(("is_known", "capped"), [(True, 70.0), (False, None)])
def test_the_power_limit_is_counted_over_the_attempts_that_wall_seconds_counts(
    root: Path, sql: Ask, is_known: bool, capped: float | None
) -> None:
    """Else its share of a resumed run's time would be too small."""
    clocks = {"power_limit_watts": 700, "sm_mhz": 1980, "memory_mhz": 2619, "slowed_seconds": 0.0}
    folder = Folder(root, plan("r1"))
    for attempt, seconds, outcome in ((1, 40.0, "cancelled"), (2, 30.0, "completed")):
        folder.start(attempt=attempt, clocks=clocks | {"power_capped_seconds": 100.0})
        end_clocks = clocks | {"power_capped_seconds": 100.0 + seconds}
        folder.end(outcome, attempt=attempt, clocks=end_clocks if is_known or attempt == 2 else None)
    collect(root)
    (run,) = sql("SELECT power_capped_seconds, slowed_seconds, wall_seconds FROM runs")
    assert (run["power_capped_seconds"], run["wall_seconds"]) == (capped, 120)
    assert run["slowed_seconds"] == (0 if is_known else None)


def test_power_is_of_windows_over_several_records_that_count(root: Path, sql: Ask) -> None:
    """A reading can be late by 0.1 s, once for all windows that follow each other, and none reaches into the warm-up."""
    records = [
        {"step_seconds": 0.02, "energy_joules": 140.0} | fields
        for fields in (
            {"power_joules": 900.0, "power_seconds": 1.2, "power_steps": 15},
            {},
            {"power_joules": 800.0, "power_seconds": 1.2, "power_steps": 10},
            {},
            {"power_joules": 700.0, "power_seconds": 1.2, "power_steps": 10},
        )
    ]
    run = measured(root, sql, *records)
    assert run["power_watts"] == 600.0
    watts = [row["power_watts"] for row in sql("FROM steps ORDER BY step")]
    assert watts == pytest.approx([1000 / 4.1, 900 / 1.3, None, 800 / 1.3, None, 700 / 1.3])
