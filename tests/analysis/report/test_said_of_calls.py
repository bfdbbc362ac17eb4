"""What the answer says first of runs that time attention alone."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest

from analysis.report.said.calls import sentences
from analysis.report.said.ran import sentence
from tests.analysis.charts.test_kernel_points import called


@pytest.mark.parametrize(("rounds", "said"), [((1, 1), "1 round of"), ((15, 31), "15 to 31 rounds of")])
def test_rounds_are_counted(rounds: tuple[int, int], said: str) -> None:
    about: defaultdict[str, Any] = defaultdict(lambda: None, outcome="completed")
    runs = [
        about
        | {"config": {"call": {"shape": f"B{batch} T16 H2 D16", "causal": True}}, "planned_steps": steps}
        for batch, steps in enumerate(rounds, 1)
    ]
    text = sentence(SimpleNamespace(runs=runs, calls=True)).text  # type: ignore[arg-type]
    assert "at 2 shapes, both ways in " + said + " all backends: 2 runs, of which 2 completed." in text


@pytest.mark.parametrize(
    ("outcomes", "said"),
    [
        (("completed", "cancelled"), "was timed at 1 of 2 shapes"),
        (("cancelled", "cancelled"), "was to be timed at 2 shapes"),
    ],
)
def test_shapes_whose_runs_did_not_complete_are_not_called_timed(
    outcomes: tuple[str, str], said: str
) -> None:
    about: defaultdict[str, Any] = defaultdict(lambda: None, planned_steps=15)
    runs = [
        about | {"config": {"call": {"shape": f"B{batch} T16 H2 D16", "causal": True}}, "outcome": outcome}
        for batch, outcome in enumerate(outcomes, 1)
    ]
    assert said in sentence(SimpleNamespace(runs=runs, calls=True)).text  # type: ignore[arg-type]


def test_of_two_whose_intervals_overlap_neither_is_the_fastest() -> None:
    """As cudnn and auto, which run one kernel: 1.3238 ms (to 1.3253) and 1.3249 ms (from 1.3240)."""
    rows = [
        row
        | {"milliseconds_low": 0.999 * row["milliseconds"], "milliseconds_high": 1.001 * row["milliseconds"]}
        for length, slower in ((512, 1.1), (1024, 1.0008), (2048, 1.0))
        for name, times in (("cudnn", 1.0), ("auto", slower), ("math", 9.0))
        for row in called(name, times, length)
    ]
    *_, said = sentences(SimpleNamespace(kernels=rows))  # type: ignore[arg-type]
    assert said.text == (
        "Observed (replayed from CUDA graphs, which leave the host's share out): of 3 shapes, the fastest backend of "
        "a forward and its backward is `cudnn` at 1. At 2, the intervals of the fastest overlap."
    )


def test_where_intervals_overlap_at_every_shape_no_backend_is_named_the_fastest() -> None:
    rows = [
        row | {"milliseconds_low": 0.9 * row["milliseconds"], "milliseconds_high": 1.1 * row["milliseconds"]}
        for length in (512, 1024)
        for backend, times in (("cudnn", 1000.0), ("auto", 1001.0))
        for row in called(backend, times, length)
    ]
    first, said = sentences(SimpleNamespace(kernels=rows))  # type: ignore[arg-type]
    assert said.text.endswith(
        ": at none of 2 shapes is one backend the fastest of a forward and its backward. Intervals overlap."
    )
    assert "take 3.5 s with `cudnn` and 3.5 s with `auto`" in first.text
