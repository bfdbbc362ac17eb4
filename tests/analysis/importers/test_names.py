"""Columns whose names say what they are: used where nobody names any, and shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from analysis.importers import Refused
from tests.analysis.importers import made
from tests.analysis.importers.test_formats import write

# What programs log, each with what it is taken for.
LOGS: dict[str, dict[str, Any]] = {
    "plain": {"step": "step", "loss": "loss", "tokens_per_second": "tokens_per_second"},
    "lightning": {"step": "step", "loss": "train_loss_step", "learning_rate": "lr-AdamW"},
    "torchtitan": {
        "step": "step", "loss": "loss_metrics/global_avg_loss", "grad_norm": "grad_norm", "tflops": "tflops",
        "step_seconds": "time_metrics/end_to_end(s)", "memory_bytes": "memory/max_reserved(GiB)", "mfu": "mfu(%)",
    },
    "paper": {"step": "Step", "tokens_per_second": "Tokens/sec", "mfu": "MFU %", "tflops": "TFLOPs"},
}  # fmt: skip
LOGS_OF_WANDB = {
    "nanogpt": {"step": "iter", "loss": "train/loss", "learning_rate": "lr", "mfu": "mfu"},
    "trainer": {"step": "train/global_step", "loss": "train/loss", "learning_rate": "train/learning_rate"},
    "lightning": {"step": "trainer/global_step", "loss": "train_loss"},
    "own": {"step": "_step", "loss": "loss"},
}


def _rows(columns: dict[str, str], constants: dict[str, float]) -> list[dict[str, Any]]:
    return [
        dict.fromkeys(columns.values(), 10.0 + step) | constants | {columns["step"]: step}
        for step in range(1, 7)
    ]


@pytest.mark.parametrize("name", LOGS)
def test_common_names_are_taken_for_what_they_say(name: str, tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.csv", _rows(LOGS[name], {"val_loss": 1.0, "epoch": 1.0, "throughput(tps)": 5.0})
    )
    (log,) = made.read(path, "csv")
    named_columns = log.run.imported.sources["columns"]
    for quantity, column in LOGS[name].items():
        assert f"{quantity} = '{column}'" in named_columns
    assert named_columns.count("=") == len(LOGS[name])
    assert [step.step for step in log.steps] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("name", LOGS_OF_WANDB)
def test_the_step_of_a_wandb_history_is_the_programs_own_where_it_has_one(name: str, tmp_path: Path) -> None:
    columns = LOGS_OF_WANDB[name]
    rows = [{"_step": 100 + index} | row for index, row in enumerate(_rows(columns, {}))]
    (log,) = made.read(write(tmp_path / "a.csv", rows), "wandb")
    for quantity, column in columns.items():
        assert f"{quantity} = '{column}'" in log.run.imported.sources["columns"]
    assert log.steps[0].step == 1


def test_a_mapping_that_names_columns_says_all_of_them_and_the_step_alone_is_still_looked_for(
    tmp_path: Path,
) -> None:
    path = write(
        tmp_path / "a.csv", [{"step": step, "loss": 9.0, "mine": 8.0, "lr": 1.0} for step in (1, 2, 3)]
    )
    (log,) = made.read(path, "csv", {"columns": {"loss": "mine"}})
    assert [(step.step, step.loss, step.learning_rate) for step in log.steps] == [
        (1, 8, None),
        (2, 8, None),
        (3, 8, None),
    ]


@pytest.mark.refused
def test_an_ambiguous_name_is_refused_with_the_columns_that_there_are_and_an_example(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", [{"step": step, "loss": 9.0, "train/loss": 8.0} for step in (1, 2)])
    with pytest.raises(Refused) as error:
        made.read(path, "csv")
    for words in (
        "which column is the loss, 'loss' or 'train/loss'?",
        "--mapping",
        "`columns: {step: step, loss: ",
        "(columns: step, loss, ",
    ):
        assert words in str(error.value)


def test_an_mfu_that_may_be_percent_or_a_fraction_is_not_guessed(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", [{"step": step, "loss": 9.0, "mfu": 0.4} for step in (1, 2)])
    (log,) = made.read(path, "csv")
    assert "mfu" not in log.run.imported.sources["columns"]


def test_columns_that_are_not_taken_are_told(tmp_path: Path) -> None:
    """So that nobody takes a loss alone for all that a log had."""
    rows = [{"step": step, "loss": 9.0, "mfu": 0.4, "time_delta": 450, "val/loss": 9} for step in (1, 2)]
    (log,) = made.read(write(tmp_path / "a.csv", rows), "csv")
    assert log.run.imported.sources["left out"] == 'the columns mfu, time_delta, "val/loss"'
    (log,) = made.read(tmp_path / "a.csv", "csv", {"columns": {"loss": "loss"}})
    assert "left out" not in log.run.imported.sources


@pytest.mark.refused
def test_the_example_of_a_mapping_takes_columns_that_are_likely(tmp_path: Path) -> None:
    """As of what the Trainer of Hugging Face logs, with its mean at the end."""
    path = write(tmp_path / "a.csv", [{"epoch": 1, "loss": 9.0, "step": 1, "train_loss": 8.0}])
    with pytest.raises(Refused, match=r"`columns: \{step: step, loss: loss\}` \(columns: epoch, loss, "):
        made.read(path, "csv")


@pytest.mark.refused
def test_runs_that_one_column_alone_does_not_tell_apart_are_not_mixed(tmp_path: Path) -> None:
    rows = [{"run": f"{m}{b}", "model": m, "backend": b, "step": 1, "loss": 9} for m in "AB" for b in "xy"]
    runs = made.read(write(tmp_path / "a.csv", rows), "csv")
    assert [run.name for run in runs] == ["Ax", "Ay", "Bx", "By"]
    unnamed_rows = [{name: value for name, value in row.items() if name != "run"} for row in rows]
    with pytest.raises(Refused, match="which column tells runs apart, 'model' or 'backend'"):
        made.read(write(tmp_path / "a.csv", unnamed_rows), "csv")


def test_a_day_is_not_the_time_of_a_record(tmp_path: Path) -> None:
    """A run would have taken no time, or whole days."""
    rows = [
        {"date": f"2026-01-0{step}", "time": "10:00:00", "step": step, "loss": 9 - step} for step in (1, 2, 3)
    ]
    (log,) = made.read(write(tmp_path / "a.csv", rows), "csv")
    assert log.result.wall_seconds is None
