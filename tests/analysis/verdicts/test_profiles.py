"""A profile says where the time of timed steps goes only if its own steps take as long."""

from __future__ import annotations

from typing import Any

import pytest

from analysis.verdicts.profiles import impossible, median_run, unlike


def profiled(label: str, seconds: float, timed: float | None = 0.5, run_id: str = "r1") -> dict[str, Any]:
    return {"label": label, "run_id": run_id, "seconds": seconds, "timed_seconds": timed}


def test_groups_are_named_whose_profiled_steps_are_longer_or_shorter_by_more_than_a_tenth() -> None:
    """Shorter ones, too: on a busy machine, a run's steps may take ten times as long as the profiled ones."""
    percentages = unlike(
        [profiled("a", 0.549), profiled("b", 0.56), profiled("c", 0.05), profiled("d", 0.9, None)]
    )
    assert percentages == {"b": pytest.approx(12.0), "c": pytest.approx(-90.0)}


def test_a_group_is_judged_by_the_run_that_the_figure_shows() -> None:
    """The one of the median timed step, as other figures show it; of two the shorter."""
    runs = [profiled("a", 0.8, 0.5, run_id="r1"), profiled("a", 0.5, 0.9, run_id="r2")]
    assert unlike(runs) == {"a": pytest.approx(60.0)}
    third = profiled("a", 0.6, 0.6, run_id="r3")
    assert median_run([*runs, third]) is third
    assert unlike([*runs, third]) == {}


def test_a_run_without_timed_steps_stands_for_a_group_of_such_runs_alone() -> None:
    untimed = [profiled("a", 0.1, None, run_id=run_id) for run_id in ("r1", "r2")]
    assert median_run(untimed) is untimed[0]
    timed = profiled("a", 0.9, 0.8, run_id="r3")
    assert median_run([*untimed, timed]) is timed


def test_attention_that_took_less_than_it_can_was_counted_elsewhere() -> None:
    """A floor is only as exact as the measured ceilings, and no floor says nothing."""
    rows = [
        profiled(label, 0.5) | {"attention": seconds, "least_attention": least}
        for label, seconds, least in (
            ("a", 0.008, 0.0206),
            ("b", 0.019, 0.0206),
            ("c", 0.03, 0.02),
            ("d", 0.01, None),
        )
    ]
    assert impossible(rows) == {"a": (0.008, 0.0206)}
