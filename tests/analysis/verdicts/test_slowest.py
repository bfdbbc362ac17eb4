"""Of equally fast processes some one is slowest; one that holds up its run is so often, and by much."""

from __future__ import annotations

import random
from typing import Any

import pytest

from analysis.verdicts.slowest import holds_up, in_records, slowest
from model.record.records import StepRecord, now


def run(
    rank: int | None, records: int | None = None, percentage: float | None = None, **fields: Any
) -> dict[str, Any]:
    return {
        "slowest_rank": rank, "slowest_rank_records": records, "slowest_rank_percentage": percentage,
        "slowest_rank_node": "n2", "ranked_records": 50, "processes": 2, **fields,
    }  # fmt: skip


def test_a_sentence_names_rank_and_node_how_often_and_by_how_much() -> None:
    sentence = "rank 3 on n2 was slowest in 41 of 50 intervals, by 12 % of the median of the others"
    assert slowest(run(3, 41, 12.3)) == sentence
    assert slowest(run(0, 41, None, slowest_rank_node=None)) == "rank 0 was slowest in 41 of 50 intervals"
    assert slowest(run(None)) is None


def record(rank: int | None, seconds: float | None = None, others: float = 0.5) -> StepRecord:
    return StepRecord(
        step=1, steps=1, time=now(), step_seconds=1.0, tokens=8, memory_bytes=1, slowest_rank=rank,
        slowest_rank_seconds=seconds, other_ranks_seconds=seconds and others,
    )  # fmt: skip


def test_records_say_it_before_they_are_collected() -> None:
    records = [record(1, 0.6), record(0, 0.7), record(1, 0.55), record(1, 0.75), record(None)]
    sentence = "rank 1 on n2 was slowest in 3 of 4 intervals, by 20 % of the median of the others"
    assert slowest(in_records(records, ["n1", "n2"])) == sentence
    assert slowest(in_records([record(None)], ["n1", "n2"])) is None


@pytest.mark.parametrize(
    ("rank", "records", "percentage", "expected"),
    [
        (3, 41, 12.3, True),
        (0, 35, 5.0, True),
        (3, 34, 12.3, False),
        (3, 50, 4.9, False),
        (None, None, None, False),
    ],
)
def test_a_process_holds_up_its_run_if_it_is_mostly_slowest_and_by_much(
    rank: int | None, records: int | None, percentage: float | None, expected: bool
) -> None:
    assert holds_up(run(rank, records, percentage)) is expected


def test_of_more_processes_fewer_intervals_tell() -> None:
    record_fields = {"rank": 3, "records": 5, "percentage": 12.3, "ranked_records": 5}
    assert [holds_up(run(**record_fields, processes=count)) for count in (2, 3, 4, 8)] == [
        False,
        False,
        True,
        True,
    ]


def test_of_two_equally_fast_processes_hardly_ever_is_one_said_to_hold_up_the_other() -> None:
    """Intervals of independent noise of 12 %."""
    rng, count = random.Random(0), 0
    for _ in range(400):
        times = [[rng.lognormvariate(0, 0.12) for _ in range(2)] for _ in range(36)]
        records = [record(seconds.index(max(seconds)), max(seconds), min(seconds)) for seconds in times]
        count += holds_up(in_records(records, ["n1", "n2"]) | {"processes": 2})
    assert count <= 8
