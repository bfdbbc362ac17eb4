"""Energy per token: of runs whose GPUs have a counter, and no figure of others."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis import charts
from analysis.charts._style import styles
from analysis.store.collect import collect
from tests.analysis.conftest import Ask
from tests.analysis.fabricate import Folder, plan


def run(root: Path, run_id: str, attention: str, joules: float | None, repeat: int = 1) -> None:
    """20 steps, recorded in fives of 2 s each, which took so many joules."""
    folder = Folder(root, plan(run_id, attention=attention, group=attention, repeat=repeat, steps=20))
    folder.start()
    for step in (5, 10, 15, 20):
        folder.step(step, energy_joules=joules)
    folder.end()


def test_the_energy_of_a_token_is_that_of_the_steps_over_their_tokens(root: Path, sql: Ask) -> None:
    for repeat, joules in enumerate((1000.0, 1210.0), start=1):
        run(root, f"flash{repeat}", "flash", joules, repeat)
    run(root, "math1", "math", 4000.0)
    collect(root)
    chart = charts.load("energy")
    rows = sql(chart.sql.replace("$study", "'backends'"))
    tokens = 5 * sql("SELECT tokens_per_step FROM runs LIMIT 1")[0]["tokens_per_step"]
    assert [row["joules_per_token"] * tokens for row in rows] == pytest.approx([1000, 1210, 4000], rel=1e-4)
    figure = chart.build(rows, styles(["flash", "math"]))
    assert figure
    flash, math = ([*row] for row in figure.table.rows)
    assert [float(flash[2].replace(",", "")), float(math[2].replace(",", ""))] == pytest.approx(
        [1000 * 1100 / tokens, 1000 * 4000 / tokens], rel=5e-3
    )
    assert figure.finding == (
        "Median energy per token: least 53.7 mJ (flash), most 195 mJ (math); math in one run"
    )


def test_without_a_counter_there_is_no_figure(root: Path, sql: Ask) -> None:
    run(root, "flash1", "flash", None)
    collect(root)
    chart = charts.load("energy")
    assert not chart.applies(sql(chart.sql.replace("$study", "'backends'")))
