"""Files as nobody means to write them: what is bad is quarantined and said, the rest is collected."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import pytest

from analysis.store.collect import collect
from analysis.store.database import Build, database, open_for_reading, update
from model.record.errors import UserError
from tests.analysis.conftest import Ask
from tests.analysis.fabricate import START, Folder, completed, plan

pytestmark = pytest.mark.fault
QUARANTINE = "SELECT path, reason FROM quarantine ORDER BY path"


def change(path: Path, **values: Any) -> None:
    """Change fields of a record, or of every line; values are written as Python writes them: NaN, Infinity."""
    lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    path.write_text("".join(json.dumps(json.loads(line) | values) + "\n" for line in lines))


@pytest.mark.parametrize(
    "name", ["run.json", "ledger.jsonl", "attempt-1/manifest.json", "attempt-1/steps.jsonl", "attempt-1/result.json"]
)  # fmt: skip
def test_a_record_of_a_newer_version_is_quarantined_and_no_other(root: Path, sql: Ask, name: str) -> None:
    folder = completed(root, "r1")
    completed(root, "r2")
    change(folder.path / name, schema_version=2)
    assert collect(root).quarantined == 1
    (row,) = sql(QUARANTINE)
    assert row["path"] == f"backends/r1/{name}"
    assert row["reason"]
    assert sql("SELECT count(*) AS n FROM steps WHERE run_id = 'r2'") == [{"n": 21}]
    assert sql("SELECT outcome FROM runs WHERE run_id = 'r2'") == [{"outcome": "completed"}]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(
    ("name", "field", "is_quarantined"),
    [
        ("attempt-1/steps.jsonl", "loss", False),
        ("attempt-1/steps.jsonl", "step_seconds", True),
        ("attempt-1/result.json", "wall_seconds", True),
    ],
)
def test_nan_and_infinity_never_become_a_number_of_a_run(
    root: Path, sql: Ask, name: str, field: str, is_quarantined: bool, value: float
) -> None:
    """JSON has no such numbers: the trainer writes null. A loss that is none is unknown, and a time is refused."""
    folder = completed(root, "r1")
    completed(root, "r2")
    change(folder.path / name, **{field: value})
    collect(root)
    numbers = sql("SELECT final_loss, wall_seconds, training_seconds FROM runs")
    assert all(number is None or abs(number) < 1e9 for row in numbers for number in row.values())
    assert sql("SELECT count(*) AS n FROM steps WHERE isnan(loss) OR isinf(loss)") == [{"n": 0}]
    assert [row["path"] for row in sql(QUARANTINE)] == [f"backends/r1/{name}"] * is_quarantined
    assert sql("SELECT count(*) AS n FROM steps WHERE run_id = 'r2'") == [{"n": 21}]


HUGE = 10**30
LARGEST = 2**63 - 1  # fits a column; sums and products of it do not


TOO_LARGE: list[tuple[str, dict[str, Any]]] = [
    ("run.json", {"memory_bytes": HUGE}),
    ("run.json", {"position": LARGEST, "repeat": LARGEST}),
    ("run.json", {"created_at": "0001-01-01T00:00:00+14:00"}),
    ("ledger.jsonl", {"time": "0001-01-01T00:00:00+14:00"}),
    ("ledger.jsonl", {"attempt": HUGE}),
    ("attempt-1/manifest.json", {"gpus": 2**40}),
    ("attempt-1/manifest.json", {"flop_per_token": HUGE}),
    ("attempt-1/manifest.json", {"flop_per_token": LARGEST, "gpus": 2**31 - 1, "peak_flops": 1e-300}),
    ("attempt-1/manifest.json", {"started_at": "0001-01-01T00:00:00+14:00"}),
    ("attempt-1/result.json", {"peak_memory_bytes": HUGE}),
    ("attempt-1/result.json", {"wall_seconds": 1e308}),
    ("attempt-1/steps.jsonl", {"tokens": HUGE}),
    ("attempt-1/steps.jsonl", {"tokens": LARGEST, "training_tokens": LARGEST, "steps": LARGEST}),
    ("attempt-1/steps.jsonl", {"step_seconds": 1e-308, "tokens": LARGEST, "memory_bytes": LARGEST}),
    ("attempt-1/steps.jsonl", {"time": "0001-01-01T00:00:00+14:00"}),
]


def test_a_number_or_time_that_is_too_large_stops_neither_collect_nor_query(root: Path, sql: Ask) -> None:
    completed(root, "sound")
    for index, (name, values) in enumerate(TOO_LARGE):
        change(completed(root, f"r{index}").path / name, **values)
    collect(root)
    for view in ("runs", "steps", "attempts"):
        assert [row for row in sql(f"FROM {view}") if row["run_id"] == "sound"]
    quarantined = {row["path"].split("/")[1] for row in sql(QUARANTINE)}
    huge = {f"r{index}" for index, (_, values) in enumerate(TOO_LARGE) if HUGE in values.values()}
    assert huge <= quarantined


def test_a_clock_that_goes_back_changes_no_order_and_no_duration_below_zero(root: Path, sql: Ask) -> None:
    folder = Folder(root, plan("r1"))
    folder.event("claimed", executor="local")
    folder.start()
    for step in (15, 20, 25):
        folder.step(step, time=START - timedelta(seconds=step), loss=float(step))
    folder.event("ended", outcome="node_failed", after=-3600)
    assert collect(root).quarantined == 0
    assert sql("SELECT step, loss FROM steps ORDER BY step") == [
        {"step": step, "loss": float(step)} for step in (15, 20, 25)
    ]
    (run,) = sql("SELECT final_loss, wall_seconds, training_seconds, step_seconds FROM runs")
    assert run == {"final_loss": 25.0, "wall_seconds": 0.0, "training_seconds": 6.0, "step_seconds": 0.4}


def test_links_that_lead_in_circles_are_no_runs_and_stop_nothing(root: Path, sql: Ask) -> None:
    completed(root, "r1")
    (root / "itself").symlink_to("itself")
    (root / "backends" / "back").symlink_to(root)
    (root / "backends" / "loop").symlink_to("loop")
    (root / "again").symlink_to(root / "backends")
    (root / "backends" / "r1" / "attempt-2").symlink_to(".")
    (root / ".certificates").mkdir()
    (root / ".certificates" / "loop.json").symlink_to("loop.json")
    collect(root)
    assert sql("SELECT study, run_id, outcome FROM runs") == [
        {"study": "backends", "run_id": "r1", "outcome": "completed"}
    ]
    assert sql("SELECT count(*) AS n FROM steps") == [{"n": 21}]
    assert {row["path"] for row in sql(QUARANTINE)} >= {"again/r1/run.json", ".certificates/loop.json"}


@pytest.mark.parametrize("name", ["run.json", "attempt-1/steps.jsonl"])
def test_a_folder_or_a_loop_in_the_place_of_a_file_is_quarantined(root: Path, sql: Ask, name: str) -> None:
    for run, harm in (("r1", Path.mkdir), ("r2", lambda path: path.symlink_to(path.name))):
        path = completed(root, run).path / name
        path.unlink()
        harm(path)
    completed(root, "r3")
    collect(root)
    assert {f"backends/r{number}/{name}" for number in (1, 2)} <= {row["path"] for row in sql(QUARANTINE)}
    assert sql("SELECT count(*) AS n FROM steps WHERE run_id = 'r3'") == [{"n": 21}]


MEANINGLESS: list[dict[str, Any]] = [
    {"step": -(2**63) + 1, "steps": 2**62},
    {"step": 0},
    {"steps": 0},
    {"steps": -5},
    {"tokens": 0},
    {"tokens": -1},
    {"step_seconds": -0.4},
    {"step_seconds": 1e308},
    {"energy_joules": 1e308},
    {"loss": -1e308},
]


@pytest.mark.parametrize("values", MEANINGLESS)
def test_a_step_record_that_cannot_be_is_quarantined_with_what_is_wrong(
    root: Path, sql: Ask, values: dict[str, Any]
) -> None:
    """DuckDB reads many files at once, Python one that it refused: neither takes what the other does not."""
    completed(root, "r1")
    change(completed(root, "r2").path / "attempt-1/steps.jsonl", **values)
    assert collect(root).quarantined == 1
    (row,) = sql(QUARANTINE)
    assert row["path"] == "backends/r2/attempt-1/steps.jsonl"
    assert any(name in row["reason"] for name in values)
    assert sql("SELECT count(*) AS n FROM steps WHERE run_id = 'r1'") == [{"n": 21}]


def test_more_records_below_step_one_than_a_curve_has_points_stop_no_collect(root: Path, sql: Ask) -> None:
    completed(root, "r1")
    folder = completed(root, "r2")
    steps = folder.path / "attempt-1/steps.jsonl"
    line = json.loads(steps.read_text().splitlines()[0])
    steps.write_text("".join(json.dumps(line | {"step": step}) + "\n" for step in range(-299, 1)))
    assert collect(root).quarantined == 1
    assert sql("SELECT DISTINCT run_id FROM steps") == [{"run_id": "r1"}]


def test_more_tokens_than_a_column_holds_in_sum_stop_no_collect(root: Path, sql: Ask) -> None:
    folder = Folder(root, plan("r1", steps=300))
    folder.start()
    for step in range(1, 301):
        folder.step(step, steps=1, tokens=LARGEST)
    collect(root)
    assert sql("SELECT DISTINCT tokens FROM curves") == [{"tokens": None}]
    assert sql("SELECT DISTINCT tokens FROM steps") == [{"tokens": LARGEST}]


@pytest.mark.parametrize("name", ["attempt-²", "attempt-02", "attempt-0", "attempt-٣", "attempt-"])
def test_a_folder_whose_name_is_no_number_of_an_attempt_is_none(root: Path, sql: Ask, name: str) -> None:
    (completed(root, "r1").path / name).mkdir()
    collect(root)
    assert sql("SELECT attempt FROM attempts") == [{"attempt": 1}]


@pytest.mark.parametrize("values", [{"tolerance": 0}, {"tolerance": -1}, {"measured": -1}])
def test_an_audit_by_a_tolerance_that_is_none_is_quarantined(
    root: Path, sql: Ask, values: dict[str, Any]
) -> None:
    folder = completed(root, "r1")
    folder.audit(12)
    path = folder.path / "attempt-1/audits.jsonl"
    line = json.loads(path.read_text())
    change(path, tensors=line["tensors"] | {"dv": line["tensors"]["dv"] | values})
    collect(root)
    (row,) = sql(QUARANTINE)
    assert row["path"] == "backends/r1/attempt-1/audits.jsonl"
    assert sql("SELECT * FROM audits") == []


RECORDS = ("run.json", "ledger.jsonl", *(f"attempt-1/{name}" for name in ("manifest.json", "steps.jsonl", "audits.jsonl", "result.json")))  # fmt: skip


@pytest.mark.parametrize(
    "make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")], ids=["pipe", "device"]
)
def test_a_pipe_or_a_device_in_the_place_of_any_file_is_quarantined_and_not_waited_for(
    root: Path, sql: Ask, make: Callable[[Path], None]
) -> None:
    for index, name in enumerate(RECORDS):
        path = completed(root, f"r{index}").path / name
        path.unlink(missing_ok=True)
        make(path)
    completed(root, "sound")
    collect(root)
    reasons = {row["path"]: row["reason"] for row in sql(QUARANTINE)}
    for index, name in enumerate(RECORDS):
        assert "not a regular file" in reasons[f"backends/r{index}/{name}"]
    assert sql("SELECT count(*) AS n FROM steps WHERE run_id = 'sound'") == [{"n": 21}]


def test_a_pipe_that_takes_the_place_of_a_ledger_that_was_read_is_not_waited_for(
    root: Path, sql: Ask
) -> None:
    folder = completed(root, "r1")
    collect(root)
    for name in ("attempt-1/result.json", "ledger.jsonl"):
        (folder.path / name).unlink()
    os.mkfifo(folder.path / "ledger.jsonl")
    collect(root)
    assert [row["path"] for row in sql(QUARANTINE)] == ["backends/r1/ledger.jsonl"]


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["pipe", "folder"])
def test_what_is_no_file_in_the_place_of_the_database_is_refused_and_not_waited_for(
    root: Path, make: Callable[[Path], None]
) -> None:
    completed(root, "r1")
    make(database(root))
    for act in (collect, open_for_reading):
        with pytest.raises(UserError, match="in the database's place but is not a file"):
            act(root)


def test_a_damaged_database_is_set_aside_without_following_a_link(root: Path, tmp_path: Path) -> None:
    """Whoever may write to the root could have put one there, to a file that only we can write to."""
    completed(root, "r1")
    database(root).write_bytes(b"not a database" * 1000)
    target = tmp_path / "mine"
    target.write_text("precious")
    (root / "results.unreadable.duckdb").symlink_to(target)
    collect(root)
    assert target.read_text() == "precious"
    assert (root / "results.unreadable.duckdb").read_bytes() == b"not a database" * 1000


@pytest.mark.parametrize("foreign", [b"[1, 2, 3]", b"\x1f\x8b\x08\x00 zipped"])
def test_step_records_without_a_whole_line_are_said(root: Path, sql: Ask, foreign: bytes) -> None:
    completed(root, "r1")
    (completed(root, "r2").path / "attempt-1/steps.jsonl").write_bytes(foreign)
    assert collect(root).quarantined == 1
    assert sql(QUARANTINE) == [
        {"path": "backends/r2/attempt-1/steps.jsonl", "reason": "it has no complete line"}
    ]


@pytest.mark.parametrize("peak", [0, -1e12, 1e-300])
def test_a_peak_that_no_device_has_gives_no_utilisation(root: Path, sql: Ask, peak: float) -> None:
    change(completed(root, "r1").path / "attempt-1/manifest.json", peak_flops=peak)
    collect(root)
    assert [row["path"] for row in sql(QUARANTINE)] == ["backends/r1/attempt-1/manifest.json"]
    assert sql("SELECT mfu FROM runs") == [{"mfu": None}]


def test_a_disk_that_is_full_does_not_make_a_database_a_damaged_one(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def work(build: Build) -> None:
        raise duckdb.FatalException("FATAL Error: could not write all bytes to file: No space left on device")

    with pytest.raises(UserError, match="No space left on device; free some space, or name a folder"):
        update(root, fresh=False, work=work)
    assert "damaged" not in caplog.text
