"""What the answer says first of runs that time attention alone."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from analysis.report.said.ran import sentence


@pytest.mark.parametrize(("rounds", "said"), [((1, 1), "1 round of"), ((15, 31), "15 to 31 rounds of")])
def test_rounds_are_counted(rounds: tuple[int, int], said: str) -> None:
    runs = [
        {
            "config": {"call": {"shape": f"B{batch} T16 H2 D16", "causal": True}}, "planned_steps": steps,
            "outcome": "completed", "device": "a CPU", "gpu": None, "node": "n",
        }
        for batch, steps in enumerate(rounds, 1)
    ]  # fmt: skip
    text = sentence(SimpleNamespace(runs=runs, calls=True)).text  # type: ignore[arg-type]
    assert "at 2 shapes, both ways in " + said + " all backends: 2 runs, of which 2 completed." in text
