"""What a figure's caption says of its runs."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from analysis import charts
from analysis.report.figures import ReportFigure, sizes, warmup

FIGURE = charts.Figure({}, "", "", "", frozenset())


def rows(labels: Iterable[str]) -> list[dict[str, object]]:
    return [{"label": label} for label in labels]


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ("a", "n = 1"),
        ("aaa", "n = 3"),
        ("abc", "n = 1 in each of 3 groups"),
        ("aabbc", "n = 2 in 2 (a, b); n = 1 in 1 (c)"),
        (
            ["causal=true, shape=B1 T16384 H16 D128"] * 2 + ["b" * 90, "c" * 90],
            "n = 2 in 1 (causal=true, shape=B1 T16384 H16 D128); n = 1 in 2",
        ),
        ("", "no run"),
    ],
)
def test_n_is_that_of_a_group_and_not_of_the_study(labels: str, expected: str) -> None:
    assert sizes(rows(labels)) == expected


def test_groups_whose_names_have_commas_are_told_apart() -> None:
    labels = ["one GPU", "FSDP2, gathered once", "FSDP2", "FSDP2"]
    assert sizes(rows(labels)) == "n = 1 in 2 (one GPU; FSDP2, gathered once); n = 2 in 1 (FSDP2)"


@pytest.mark.parametrize(
    ("counts", "phrase"), [([1], "step"), ([10, 10], "10 steps"), ([1, 5], "1 or 5 steps")]
)
def test_the_warm_up_of_one_step_is_the_first_step(counts: list[int], phrase: str) -> None:
    caption = warmup(charts.load("tokens_per_second"), [{"warmup_steps": count} for count in counts])
    assert caption == [("Warm-up", f"left out: the first {phrase}")]


@pytest.mark.parametrize(
    ("chart", "reason"),
    [
        ("kernel_time", "at a shape that the figure does not show"),
        ("tokens_per_second", "without a value for it"),
        ("ratios", "without a rate, or a completed counterpart in the baseline"),
    ],
)
def test_completed_runs_are_not_left_out_without_a_reason(chart: str, reason: str) -> None:
    runs = [
        {"label": label, "outcome": end}
        for label, end in zip("abc", ("completed", "failed", None), strict=True)
    ]
    figure = ReportFigure(chart, charts.load(chart), "", b"", FIGURE, runs, [])
    assert figure.ends_of_left_out == f"1 completed, {reason} (a); 1 failed (b); 1 not ended (c)"
