"""Of equally fast processes some one is slowest; one that holds up its run is so often, and by much."""

from __future__ import annotations

from typing import Any

import pytest

from analysis.findings.slowest import holds_up, slowest


def run(
    rank: int | None, records: int | None = None, percentage: float | None = None, **more: Any
) -> dict[str, Any]:
    return {
        "slowest_rank": rank, "slowest_rank_records": records, "slowest_rank_percentage": percentage,
        "slowest_rank_node": "n2", "ranked_records": 50, **more,
    }  # fmt: skip


def test_a_sentence_names_rank_and_node_how_often_and_by_how_much() -> None:
    said = "rank 3 on n2 was slowest in 41 of 50 intervals, by 12 % of the median of the others"
    assert slowest(run(3, 41, 12.3)) == said
    assert slowest(run(0, 41, None, slowest_rank_node=None)) == "rank 0 was slowest in 41 of 50 intervals"
    assert slowest(run(None)) is None


@pytest.mark.parametrize(
    ("rank", "records", "percentage", "holds"),
    [
        (3, 41, 12.3, True),
        (0, 26, 5.0, True),
        (3, 25, 12.3, False),
        (3, 50, 4.9, False),
        (None, None, None, False),
    ],
)
def test_a_process_holds_up_its_run_if_it_is_mostly_slowest_and_by_much(
    rank: int | None, records: int | None, percentage: float | None, holds: bool
) -> None:
    assert holds_up(run(rank, records, percentage)) is holds
