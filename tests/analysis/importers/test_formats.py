"""One contract over the registry of log formats, and what each format reads."""

from __future__ import annotations

import csv
import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest

from analysis import importers
from analysis.importers import Refused
from model.record.errors import UserError
from tests.analysis.importers import made

MAPPING: dict[str, Any] = {
    "columns": {
        "step": "it",
        "loss": {"column": "train/loss", "unit": "bits"},
        "interval_seconds": {"column": "dt", "unit": "ms"},
        "tokens_per_second": {"column": "rate", "unit": "ktokens/s"},
        "mfu": {"column": "mfu", "unit": "fraction"},
        "memory_bytes": {"column": "mem", "unit": "GiB"},
        "time": {"column": "t", "unit": "s"},
    },
    "constants": {"attention": "cudnn", "gpus": 1, "seed": 3},
}
ROWS: list[dict[str, Any]] = [
    {"it": step, "train/loss": 8 / math.log(2), "dt": 5000.0, "rate": 4.096, "mfu": 0.4, "mem": 2, "t": 1.7e9 + step / 2}
    for step in (10, 20, 30)
]  # fmt: skip


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    """The rows in the format that the file's ending says."""
    if path.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        names = dict.fromkeys(name for row in rows for name in row)
        pq.write_table(pa.table({name: [row.get(name) for row in rows] for name in names}), path)
    elif path.suffix == ".csv":
        with path.open("w", newline="") as file:
            table = csv.DictWriter(file, list(dict.fromkeys(name for row in rows for name in row)))
            table.writeheader()
            table.writerows(rows)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("name", importers.names())
def test_every_format_says_in_a_line_what_it_reads_and_refuses_a_file_that_is_not_there(
    name: str, tmp_path: Path
) -> None:
    if name == "tensorboard":
        pytest.importorskip("tensorboard")
    importer = importers.load(name)
    assert "\n" not in importer.title
    with pytest.raises(Refused, match="no such file"):
        importer.read(tmp_path / "missing.csv")


def test_an_unknown_format_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(UserError, match="did you mean 'csv'"):
        importers.load("cvs")


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_a_mapping_names_columns_units_and_constants_in_each_format(form: str, tmp_path: Path) -> None:
    (log,) = made.read(write(tmp_path / f"a.{form}", ROWS), form, MAPPING)
    step = log.steps[1]
    assert step.loss == pytest.approx(8)
    assert (step.step, step.steps, step.step_seconds, step.tokens) == (20, 10, 0.5, 20480)
    assert (step.memory_bytes, step.learning_rate, step.training_tokens) == (2**31, None, None)
    assert step.time and step.time.timestamp() == 1.7e9 + 10
    assert log.run.imported.printed["mfu"] == pytest.approx(40)
    assert (log.run.attention, log.run.seed, log.run.factors) == (
        "cudnn", 3, {"attention": "cudnn", "log": "a", "seed": 3},
    )  # fmt: skip
    assert log.run.imported.sources["tokens"] == "tokens per second x seconds, both as printed"


def test_a_column_tells_the_runs_of_one_file_apart_and_the_files_name_gives_factors(tmp_path: Path) -> None:
    rows = [{"run": run, "it": step, "loss": 9 - step / 10} for step in (1, 2, 3) for run in ("x", "y")]
    mapping = {"run": "run", "columns": {"step": "it", "loss": "loss"}, "file_name": r"lr(?P<lr>[\de-]+)"}
    logs = made.read(write(tmp_path / "lr3e-4.csv", rows), "csv", mapping)
    assert [log.run.factors for log in logs] == [{"lr": "3e-4", "log": "x"}, {"lr": "3e-4", "log": "y"}]
    assert len({log.run.run_id for log in logs}) == 2
    assert [len(log.steps) for log in logs] == [3, 3]


def test_what_a_csv_does_not_say_is_unknown(tmp_path: Path) -> None:
    rows = [{"step": step, "loss": 9 - step / 10} for step in range(5)]
    (log,) = made.read(write(tmp_path / "a.csv", rows), "csv", {"columns": {"step": "step", "loss": "loss"}})
    assert {name for step in log.steps for name, value in step if value is None} == {
        "time", "learning_rate", "grad_norm", "step_seconds", "tokens", "training_tokens", "memory_bytes",
        "printed_tokens_per_second",
    }  # fmt: skip
    assert [step.step for step in log.steps] == [1, 2, 3, 4, 5]
    assert log.run.imported.sources["step"] == "the log counts from 0; 1 is added"
    manifest = log.manifest.model_dump()
    for name in (
        "host",
        "pid",
        "gpus",
        "device_name",
        "flop_per_token",
        "peak_flops",
        "started_at",
        "certificate",
    ):
        assert manifest[name] is None, name
    assert (log.run.config, log.run.seed, log.run.attention) == ({}, None, None)


def test_elapsed_and_total_columns_become_seconds_and_tokens_of_each_interval(tmp_path: Path) -> None:
    rows = [{"s": step, "e": 7 + 2.0 * step, "n": 100 * step, "loss": 1.0} for step in (2, 4, 6)]
    columns = {"step": "s", "elapsed_seconds": "e", "total_tokens": "n", "loss": "loss"}
    (log,) = made.read(write(tmp_path / "a.csv", rows), "csv", {"columns": columns})
    assert [(step.step_seconds, step.tokens) for step in log.steps] == [(None, 200), (2.0, 200), (2.0, 200)]


def test_a_planned_number_of_steps_decides_the_outcome(tmp_path: Path) -> None:
    rows = [{"step": step, "loss": 1.0} for step in (1, 2, 3)]
    outcomes = []
    for steps in (3, 4):
        mapping = {"columns": {"step": "step", "loss": "loss"}, "config": {"train": {"steps": steps}}}
        (log,) = made.read(write(tmp_path / "a.csv", rows), "csv", mapping)
        outcomes.append((log.result.outcome, log.result.reason))
    assert outcomes == [("completed", None), ("lost", "the log ends at step 3 of 4")]


WANDB = {"columns": {"loss": "train/loss", "interval_seconds": "dt"}}


def test_a_wandb_history_joins_the_rows_of_a_step_and_skips_those_without_a_metric(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"_step": 0, "_timestamp": 1.7e9, "_runtime": 3.0, "system/gpu": 50}]
    for step in (1, 2, 3):
        rows.append(
            {"_step": step, "_timestamp": 1.7e9 + step, "_runtime": 3.0 + step, "train/loss": 9.0 - step}
        )
        rows.append({"_step": step, "_timestamp": 1.7e9 + step, "_runtime": None, "dt": 0.5})
    for ending in ("jsonl", "parquet", "csv"):
        (log,) = made.read(write(tmp_path / f"h.{ending}", rows), "wandb", WANDB)
        assert [(step.loss, step.step_seconds) for step in log.steps] == [
            (8.0, 0.5),
            (7.0, 0.5),
            (6.0, 0.5),
        ], ending


def test_a_csv_from_a_chart_of_wandb_holds_a_run_a_column(tmp_path: Path) -> None:
    path = tmp_path / "chart.csv"
    path.write_text(
        '"Step","sdpa - train/loss","sdpa - train/loss__MIN","sdpa - train/loss__MAX","my - run - train/loss"\n'
        "1,9,9,9,8\n2,8.5,8.5,8.5,\n3,8,8,8,7\n"
    )
    first, second = made.read(path, "wandb", WANDB)
    assert (first.run.factors, second.run.factors) == ({"log": "sdpa"}, {"log": "my - run"})
    assert [[step.loss for step in log.steps] for log in (first, second)] == [[9, 8.5, 8], [8, 7]]


@pytest.mark.refused
def test_wandbs_own_file_is_refused_with_how_to_export_it(tmp_path: Path) -> None:
    (tmp_path / "run-1.wandb").write_bytes(b":W&B\x8c\xbe")
    with pytest.raises(Refused, match=r"no exported history .*\.to_csv\(FILE\)"):
        made.read(tmp_path / "run-1.wandb", "wandb", WANDB)


@pytest.mark.refused
def test_without_the_package_tensorboard_its_format_is_refused_with_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto", None)
    (tmp_path / "events").write_bytes(b"")
    with pytest.raises(UserError, match=r"pip install 'assay-studies\[tensorboard\]'"):
        made.read(tmp_path / "events", "tensorboard")


def _events(folder: Path) -> Path:
    writers = pytest.importorskip("tensorboard.summary.writer.event_file_writer")
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    writer = writers.EventFileWriter(str(folder))
    for step in (1, 2, 3):
        for tag, value in (("train/loss", 9.0 - step), ("dt", 0.5)):
            summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
            writer.add_event(Event(wall_time=1.7e9 + step, step=step, summary=summary))
    writer.close()
    return folder


TAGS = {"columns": {"loss": "train/loss", "interval_seconds": "dt"}}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_events_of_a_run_become_one_record_a_step(tmp_path: Path) -> None:
    (log,) = made.read(_events(tmp_path / "run"), "tensorboard", TAGS)
    assert [(step.step, step.loss, step.step_seconds) for step in log.steps] == [
        (1, 8, 0.5),
        (2, 7, 0.5),
        (3, 6, 0.5),
    ]
    (reimported,) = made.read(tmp_path / "run", "tensorboard", TAGS)
    assert reimported.run.run_id == log.run.run_id


@pytest.mark.refused
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_file_without_events_is_refused_and_a_torn_one_keeps_what_is_whole(tmp_path: Path) -> None:
    folder = _events(tmp_path / "run")
    (path,) = folder.iterdir()
    path.write_bytes(path.read_bytes()[:-20])
    (log,) = made.read(path, "tensorboard", TAGS)
    assert [step.step for step in log.steps] == [1, 2, 3]
    path.write_bytes(b"not events")
    with pytest.raises(Refused, match="no scalars"):
        made.read(path, "tensorboard", TAGS)
