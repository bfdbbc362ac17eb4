"""What the answer says first of runs that time attention alone."""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest

from analysis.report.said.ran import sentence


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
