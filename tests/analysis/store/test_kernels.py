"""Attention alone in the database: a row for each backend, direction and mode, timed or not."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pytest

from analysis.audit.records import contradictions
from analysis.store import database as store
from analysis.store.collect import collect
from analysis.store.records import open_records, write_records
from model.measure.flops import attention_flop
from model.record.config import CallConfig, RunConfig
from model.record.kernels import Counted, Traffic
from tests.analysis.conftest import Ask
from tests.analysis.fabricate import CASE, Folder, certificate, plan
from tests.analysis.timed import certified, kernels


def timed(root: Path, run_id: str = "r1", **milliseconds: float | str) -> Folder:
    folder = Folder(root, plan(run_id, study="kernels"))
    folder.start()
    kernels(folder, CASE, **(milliseconds or {"flash": 0.5, "math": "oom_gpu"}))
    folder.end()
    return folder


def test_each_backend_has_a_row_by_direction_and_mode_with_its_rate(root: Path, sql: Ask) -> None:
    timed(root)
    assert collect(root).quarantined == 0
    rows = sql("FROM kernels ORDER BY attention, mode, direction")
    assert [(row["attention"], row["mode"], row["direction"], row["outcome"]) for row in rows] == [
        (name, mode, direction, outcome)
        for name, outcome in (("flash", "completed"), ("math", "oom_gpu"))
        for mode in ("eager", "graph")
        for direction in ("backward", "both", "forward")
    ]
    graph = rows[5]
    assert (graph["milliseconds"], graph["calls"]) == (pytest.approx(0.5), 7)
    assert (graph["milliseconds_low"], graph["milliseconds_high"]) == (
        pytest.approx(0.485),
        pytest.approx(0.515),
    )
    assert graph["tflops"] == pytest.approx(attention_flop(CASE, "forward") / 0.5e-3 / 1e12)
    assert graph["ceiling_tflops"] == pytest.approx(700)
    assert (graph["sm_mhz_low"], graph["sm_mhz_high"], graph["throttle_reasons"]) == (1740, 1755, "none")
    assert (graph["device"], graph["batch"], graph["sequence_length"], graph["kv_heads"]) == (
        "NVIDIA H200",
        1,
        4096,
        8,
    )
    assert json.loads(graph["seconds"]) == [
        0.5e-3 * factor for factor in (0.97, 0.98, 0.99, 1.0, 1.01, 1.02, 1.03)
    ]
    # Of the GPU the host's time and the kernels' stand apart, and of both passes together their sums.
    assert graph["host_milliseconds"] == pytest.approx(0.02)
    assert graph["kernel_milliseconds"] is None
    eager = {row["direction"]: row for row in rows if (row["attention"], row["mode"]) == ("flash", "eager")}
    assert eager["forward"]["kernel_milliseconds"] == pytest.approx(0.5)
    assert eager["both"]["kernel_milliseconds"] == pytest.approx(1.0)
    assert eager["both"]["host_milliseconds"] == pytest.approx(0.04)
    assert {(row["dropout"], row["tile_queries"], row["tile_keys"]) for row in rows} == {(0.0, None, None)}
    failed = rows[-1]
    assert failed["seconds"] is None
    assert (failed["milliseconds"], failed["tflops"], failed["calls"], failed["reason"]) == (
        None,
        None,
        0,
        "math ended as oom_gpu",
    )


def test_the_tile_of_a_call_is_in_the_table_and_a_cpu_has_no_time_of_the_host(root: Path, sql: Ask) -> None:
    case = replace(CASE, device="cpu", dropout=0.125, tile=(128, 64))
    folder = Folder(root, plan("r1", study="kernels"))
    folder.start()
    kernels(folder, case, tiled=0.5)
    folder.end()
    collect(root)
    (row,) = sql("FROM kernels WHERE direction = 'both'")
    assert (row["dropout"], row["tile_queries"], row["tile_keys"]) == (0.125, 128, 64)
    assert (row["host_milliseconds"], row["kernel_milliseconds"]) == (None, None)


def test_the_bytes_of_a_call_are_in_the_table_of_both_passes_their_sum(root: Path, sql: Ask) -> None:
    bytes_ = {"dram_read_bytes": 1, "dram_write_bytes": 2, "l2_read_bytes": 3, "l2_write_bytes": 4}
    folder = Folder(root, plan("r1", study="kernels"))
    folder.start()
    kernels(folder, CASE, traffic=Traffic(formula_bytes=5, counted=Counted(kernels=1, **bytes_)), flash=0.5)
    folder.end()
    folder = Folder(root, plan("r2", study="kernels"))
    folder.start()
    kernels(folder, CASE, traffic=Traffic(reason="no ncu"), flash=0.5)
    folder.end()
    collect(root)
    names = ["formula_bytes", *bytes_]
    for direction, factor in (("forward", 1), ("both", 2)):
        (row,) = sql(f"FROM kernels WHERE run_id = 'r1' AND mode = 'eager' AND direction = '{direction}'")
        assert [row[name] for name in names] == [factor * value for value in (5, 1, 2, 3, 4)]
        assert row["score_bytes"] == CASE.batch * CASE.heads * CASE.sequence_length**2 * 2
        assert row["traffic_reason"] is None
    (row,) = sql("FROM kernels WHERE run_id = 'r2' AND mode = 'eager' AND direction = 'both'")
    assert ([row[name] for name in names], row["traffic_reason"]) == ([None] * 5, "no ncu")
    (row,) = sql("FROM kernels WHERE run_id = 'r1' AND mode = 'graph' AND direction = 'both'")
    assert [row[name] for name in names] == [None] * 5


def test_reports_carry_the_certificates_that_kernels_were_timed_under(root: Path, tmp_path: Path) -> None:
    folder = Folder(root, plan("r1", study="kernels"))
    folder.start()
    certificate_record = certificate(root, "flash")
    record = kernels(folder, CASE, flash=0.5)
    times = [time.model_copy(update={"certificate": certificate_record.key}) for time in record.times]
    (folder.path / "attempt-1" / "kernels.json").write_text(
        record.model_copy(update={"times": times}).model_dump_json()
    )
    collect(root)
    with store.open_for_reading(root) as connection:
        write_records(connection, "kernels", tmp_path / "records")
    with open_records(tmp_path / "records") as connection:
        assert connection.sql("SELECT key FROM certificates").fetchall() == [(certificate_record.key,)]
        assert connection.sql("SELECT count(*) FROM kernels").fetchall() == [(6,)]


def test_medians_and_intervals_are_held_against_the_seconds_of_their_calls(
    root: Path, tmp_path: Path
) -> None:
    certified(root, "flash")
    collect(root)
    with store.open_for_reading(root) as connection:
        write_records(connection, "kernels", tmp_path / "records")
    with open_records(tmp_path / "records") as connection:
        assert not list(contradictions(connection))
        connection.execute(
            "UPDATE kernels SET milliseconds_low = 0.99 WHERE mode = 'graph' AND direction = 'forward'"
        )
        (finding,) = map(str, contradictions(connection))
    assert "kernels/r1 attempt 1, flash forward graph: it says 7 calls, 1.0 ms, 0.99 ms" in finding
    assert "the records give 7 calls, 1.0 ms, 0.97 ms" in finding


@pytest.mark.fault
def test_what_was_measured_stays_when_its_folder_is_purged_and_goes_to_a_new_version(
    root: Path, sql: Ask
) -> None:
    timed(root)
    collect(root)
    shutil.rmtree(root / "kernels")
    collect(root)
    with duckdb.connect(store.database(root)) as connection:
        connection.execute("UPDATE database_version SET fingerprint = 'old'")
    collect(root)
    assert len(sql("FROM kernels")) == 12 and len(sql("FROM runs WHERE missing_since IS NOT NULL")) == 1


@pytest.mark.fault
def test_a_new_version_takes_over_from_a_database_whose_kernels_belonged_to_no_run(
    root: Path, sql: Ask
) -> None:
    timed(root)
    collect(root)
    shutil.rmtree(root / "kernels")
    with duckdb.connect(store.database(root)) as connection:
        connection.execute("UPDATE database_version SET fingerprint = 'old'")
        connection.execute(
            "DROP VIEW admissions; DROP TABLE kernels; CREATE TABLE kernels (attention VARCHAR, batch BIGINT)"
        )
    collect(root)
    assert [row["run_id"] for row in sql("SELECT run_id FROM runs")] == ["r1"] and sql("FROM kernels") == []
    assert not (root / "results.unreadable.duckdb").exists()


@pytest.mark.fault
@pytest.mark.parametrize(
    "content", [b"{", b"null", b'{"run_id": 1}', b"\xff"], ids=["torn", "null", "schema", "encoding"]
)
def test_a_record_that_cannot_be_read_is_quarantined_alone(root: Path, sql: Ask, content: bytes) -> None:
    folder = timed(root)
    (folder.path / "attempt-1" / "kernels.json").write_bytes(content)
    assert collect(root).quarantined == 1
    assert sql("FROM kernels") == [] and [row["outcome"] for row in sql("FROM runs")] == ["completed"]


@pytest.mark.fault
def test_a_record_of_another_run_or_with_numbers_that_no_column_holds_is_quarantined(
    root: Path, sql: Ask
) -> None:
    folder = timed(root)
    path = folder.path / "attempt-1" / "kernels.json"
    path.write_text(path.read_text().replace('"run_id": "r1"', '"run_id": "r2"'))
    assert collect(root).quarantined == 1
    kernels(folder, replace(CASE, batch=2**63), flash=0.5)
    assert collect(root).quarantined == 1 and sql("FROM kernels") == []


@pytest.mark.fault
@pytest.mark.parametrize(
    "change",
    [
        {"rounds": 6},
        {"product_seconds": [0.0]},
        {"times": [{"attention": "flash", "direction": "forward", "mode": "eager", "outcome": "completed"}]},
    ],
)
def test_times_that_cannot_have_been_measured_are_quarantined(
    root: Path, sql: Ask, change: dict[str, Any]
) -> None:
    """Another number of calls than rounds, a product in no time, a backend that completed without times."""
    path = timed(root).path / "attempt-1" / "kernels.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert collect(root).quarantined == 1 and sql("FROM kernels") == []


@pytest.mark.fault
@pytest.mark.parametrize(
    "change",
    ["tflops = 2 * tflops", "milliseconds_high = milliseconds_low / 2", "outcome = 'wrong'", "calls = 0"],
)
def test_records_that_contradict_themselves_are_found(root: Path, change: str) -> None:
    timed(root)
    collect(root)
    with duckdb.connect(store.database(root)) as connection:
        assert list(contradictions(connection)) == []
        connection.execute(f"UPDATE kernels SET {change} WHERE attention = 'flash'")
        assert list(contradictions(connection))


def called(root: Path, **call: Any) -> Path:
    """A run of task attention at CASE, or at what `call` says, that timed `flash` at CASE; its record."""
    planned = CallConfig(**{"shape": "B1 T4096 H32 K8 D128", "steps": 7} | call)
    folder = Folder(root, plan("r1", "kernels", config=RunConfig(task="attention", call=planned)))
    folder.start(flop_per_token=None, parameter_count=None)
    kernels(folder, CASE, flash=0.5)
    folder.end(steps=7, final_loss=None)
    return folder.path / "attempt-1" / "kernels.json"


def test_times_of_the_planned_shape_are_taken(root: Path, sql: Ask) -> None:
    called(root)
    assert collect(root).quarantined == 0
    assert len(sql("FROM kernels")) == 6


@pytest.mark.fault
@pytest.mark.parametrize(
    "call", [{"shape": "B4 T4096 H32 K8 D128"}, {"causal": False}, {"dtype": "float16"}, {"steps": 31}]
)
def test_times_of_another_shape_than_the_run_was_to_call_are_refused(
    root: Path, sql: Ask, call: dict[str, Any]
) -> None:
    called(root, **call)
    assert collect(root).quarantined == 1
    assert "another shape, mask, precision or number of rounds" in sql("FROM quarantine")[0]["reason"]
    assert sql("FROM kernels") == []


CHECK = {"round": 1, "sample": 0, "first_head": 0, "heads": 4, "rows": [[0, 5]]}


@pytest.mark.fault
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"seconds": [1e-3, 1e-3, 1e-3, -1e-3, 1e-3, 1e-3, 1e-3]}, "greater than 0"),
        ({"direction": "backward"}, "twice in one mode and direction"),
        ({"direction": "both"}, "both at once"),
        ({"checked": CHECK | {"error": 1.5}}, "more error than is allowed"),
        ({"checked": CHECK | {"error": None}}, "more error than is allowed"),
    ],
)
def test_times_that_cannot_be_are_refused(root: Path, sql: Ask, change: dict[str, Any], reason: str) -> None:
    path = called(root)
    record = json.loads(path.read_text())
    record["times"][0] |= change
    path.write_text(json.dumps(record))
    assert collect(root).quarantined == 1
    assert reason in sql("FROM quarantine")[0]["reason"]
    assert sql("FROM kernels") == []


def test_a_check_at_its_limit_is_taken(root: Path) -> None:
    path = called(root)
    record = json.loads(path.read_text())
    record["times"][0]["checked"] = CHECK | {"error": 1.0}
    path.write_text(json.dumps(record))
    assert collect(root).quarantined == 0


@pytest.mark.fault
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("UPDATE kernels SET batch = 4, tflops = 4 * tflops", "batch 1"),
        ("UPDATE kernels SET calls = 6 WHERE direction = 'forward'", "7 calls"),
        ("INSERT INTO kernels SELECT * FROM kernels WHERE direction = 'both' AND mode = 'graph'", "1"),
    ],
)
def test_records_that_contradict_the_planned_call_are_found(root: Path, change: str, message: str) -> None:
    called(root)
    collect(root)
    with duckdb.connect(store.database(root)) as connection:
        assert list(contradictions(connection)) == []
        connection.execute(change)
        assert message in str(next(contradictions(connection)))


@pytest.mark.fault
def test_a_certificate_of_another_backend_is_found(root: Path) -> None:
    certified(root, "flash")
    collect(root)
    with duckdb.connect(store.database(root)) as connection:
        assert list(contradictions(connection)) == []
        connection.execute("UPDATE kernels SET attention = 'flash9'")
        assert "flash9 timed" in str(next(contradictions(connection)))
