"""The two tables of groups say what the pages say."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.query.ask import ask
from analysis.query.statements import TRAINING_SUMMARY
from analysis.store.collect import collect
from analysis.verdicts.groups import final_loss
from tests.analysis.fabricate import Folder, plan


def test_repeats_of_a_seed_count_once_in_the_training_loss(tmp_path: Path) -> None:
    losses = [(0, 2.0), (0, 2.1), (0, 2.6), (1, 3.0), (1, 3.0), (1, 3.0)]  # seed, loss
    for repeat, (seed, loss) in enumerate(losses, start=1):
        folder = Folder(tmp_path, plan(f"r{repeat}", seed=seed, repeat=repeat))
        folder.start()
        folder.step(100, loss=loss)
        folder.end()
    collect(tmp_path)
    table = ask(tmp_path, TRAINING_SUMMARY.replace("$study", "'backends'")).records()
    estimate = final_loss([{"seed": seed, "final_loss": loss} for seed, loss in losses])
    assert estimate and table[0]["Training loss"] == round(estimate.median, 4)
    assert table[0]["Training loss"] == pytest.approx((2.2333 + 3) / 2, abs=1e-4)
    assert [row["Runs"] for row in table] == [6]
