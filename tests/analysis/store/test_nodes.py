"""Ceilings of nodes, floors and profiles of steps in the database, kept when their files go."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import duckdb
import pytest

from analysis.export.pack import pack
from analysis.export.unpack import unpack
from analysis.store import database as store
from analysis.store.collect import collect
from analysis.store.records import open_records, write_records, write_table
from model.record import files
from model.record.config import DataConfig, RunConfig
from model.record.speed import NodeRecord, StepProfile
from tests.analysis.conftest import Ask
from tests.analysis.fabricate import Folder, ceilings, completed, on_node, plan, profile

LLAMA = RunConfig(data=DataConfig(path="x"))


def run_on_node(root: Path, run_id: str = "r1", study: str = "backends") -> dict[str, Any]:
    folder = Folder(root, plan(run_id, study=study))
    facts = on_node(root, folder.run)
    folder.start(**facts)
    for step in range(5, 101, 5):
        folder.step(step)
    folder.end()
    return facts


def file_of(root: Path, facts: dict[str, Any]) -> Path:
    return root / "backends" / ".nodes" / f"{facts['ceilings']}.json"


def test_a_node_is_a_row_of_its_study(root: Path, sql: Ask) -> None:
    facts = run_on_node(root)
    summary = collect(root)
    assert (summary.runs, summary.updated, summary.quarantined) == (1, 1, 0)
    (row,) = sql("SELECT n.* FROM nodes n JOIN attempts a ON a.ceilings = n.key AND a.study = n.study")
    assert (row["study"], row["key"], row["node"]) == ("backends", facts["ceilings"], "nid001234")
    assert (row["gpu"], row["gpu_uuid"], row["gpus"], row["driver"]) == ("NVIDIA H200", "GPU-1", 1, "570.86")
    assert row["matmul_tflops"] == pytest.approx(700)
    assert row["bandwidth_gigabytes_per_second"] == pytest.approx(4000)
    assert row["launch_microseconds"] == pytest.approx(4)
    assert (row["graphics_clock_mhz"], row["memory_clock_mhz"], row["power_limit_watts"]) == (1755, 3201, 700)
    assert json.loads(row["measured"]) == ceilings(LLAMA).model_dump(mode="json")


def test_a_run_says_its_share_of_the_ceiling_and_the_floor_of_its_step(root: Path, sql: Ask) -> None:
    facts = run_on_node(root)
    collect(root)
    parts = sql("SELECT phase, part, flop, bytes, seconds FROM step_floor")
    assert parts == [part.model_dump() for part in facts["floor"]]
    (run,) = sql("SELECT * FROM runs")
    assert run["floor_seconds"] == pytest.approx(sum(part["seconds"] for part in parts))
    assert run["floor_percentage"] == pytest.approx(100 * run["floor_seconds"] / run["step_seconds"])
    assert run["ceiling_tflops"] == pytest.approx(700)
    assert run["ceiling_percentage"] == pytest.approx(100 * run["tflops"] / 700)
    assert run["ceiling_percentage"] > run["mfu"]


def test_a_run_without_ceilings_has_no_floor_and_says_why(root: Path, sql: Ask) -> None:
    completed(root, "r1")
    Folder(root, plan("r2")).start(no_ceilings="measuring ended with code 1")
    collect(root)
    rows = sql("SELECT ceiling_tflops, ceiling_percentage, floor_seconds, floor_percentage FROM runs")
    assert len(rows) == 2 and {value for row in rows for value in row.values()} == {None}
    assert [row["no_ceilings"] for row in sql("SELECT no_ceilings FROM attempts ORDER BY run_id")] == [
        None,
        "measuring ended with code 1",
    ]


def test_a_node_says_whether_its_ceilings_are_unsure(root: Path, sql: Ask) -> None:
    run_on_node(root)
    (path,) = root.glob("backends/.nodes/*.json")
    record = files.read(path, NodeRecord)
    measured = record.measured
    spread_traffic = measured.traffic.model_copy(update={"seconds_75": 4 * measured.traffic.seconds_25})
    collect(root)
    assert [row["unsure"] for row in sql("FROM nodes")] == [None]
    files.write(
        path, record.model_copy(update={"measured": measured.model_copy(update={"traffic": spread_traffic})})
    )
    collect(root)
    assert [row["unsure"] for row in sql("FROM nodes")] == [
        "the repeats of the memory bandwidth spread widely (upper over lower quartile up to 4, 1.5 is allowed), "
        "as happens when other work slows the machine"
    ]


def test_one_study_is_collected_with_its_nodes_alone(root: Path, sql: Ask) -> None:
    run_on_node(root)
    collect(root)
    run_on_node(root, "r2", "other")
    collect(root, "backends")
    assert [row["study"] for row in sql("FROM nodes")] == ["backends"]
    collect(root)
    assert [row["study"] for row in sql("FROM nodes ORDER BY study")] == ["backends", "other"]
    before = store.database(root).stat().st_mtime_ns
    assert collect(root).updated == 0
    assert store.database(root).stat().st_mtime_ns == before


@pytest.mark.fault
def test_what_was_measured_stays_when_its_file_is_purged_and_goes_to_a_new_version(
    root: Path, sql: Ask, caplog: pytest.LogCaptureFixture
) -> None:
    run_on_node(root)
    collect(root)
    shutil.rmtree(root / "backends")
    collect(root)
    assert "1 node: no files here" in caplog.text
    with duckdb.connect(store.database(root)) as connection:
        connection.execute("UPDATE database_version SET fingerprint = 'old'")
    collect(root)
    assert len(sql("FROM nodes")) == 1 and len(sql("FROM step_floor")) == 5
    assert sql("SELECT missing_since IS NOT NULL AS gone FROM runs") == [{"gone": True}]


@pytest.mark.fault
def test_a_floor_stays_when_the_manifest_of_its_attempt_is_purged(root: Path, sql: Ask) -> None:
    run_on_node(root)
    collect(root)
    (root / "backends" / "r1" / "attempt-1" / "manifest.json").unlink()
    collect(root)
    assert len(sql("FROM step_floor")) == 5


@pytest.mark.fault
def test_a_new_version_takes_over_from_a_database_without_these_tables(root: Path, sql: Ask) -> None:
    completed(root, "r1")
    collect(root)
    shutil.rmtree(root / "backends")
    with duckdb.connect(store.database(root)) as connection:
        connection.execute("UPDATE database_version SET fingerprint = 'old'")
        connection.execute("DROP VIEW runs; DROP TABLE step_floor; DROP TABLE nodes")
        connection.execute("CREATE TABLE nodes (node VARCHAR)")
    collect(root)
    assert [row["run_id"] for row in sql("SELECT run_id FROM runs")] == ["r1"]
    assert not (root / "results.unreadable.duckdb").exists()


@pytest.mark.fault
@pytest.mark.parametrize(
    "content",
    [b"{", b"null", b'{"key": 1}', b"\xff", None],
    ids=["torn", "null", "schema", "encoding", "another name"],
)
def test_a_record_that_cannot_be_read_is_quarantined_alone(
    root: Path, sql: Ask, content: bytes | None
) -> None:
    path = file_of(root, run_on_node(root))
    if content is None:
        path = path.rename(path.with_name(f"{'a' * 64}.json"))
    else:
        path.write_bytes(content)
    assert collect(root).quarantined == 1
    assert [row["path"] for row in sql("FROM quarantine")] == [path.relative_to(root).as_posix()]
    assert sql("FROM nodes") == [] and len(sql("FROM runs")) == 1


@pytest.mark.fault
def test_numbers_that_no_column_can_hold_do_not_stop_a_collect(root: Path, sql: Ask) -> None:
    facts = run_on_node(root)
    floor = [part.model_copy(update={"flop": 10**30}) for part in facts["floor"]]
    Folder(root, plan("r2")).start(floor=floor)
    collect(root)
    assert [row["path"] for row in sql("FROM quarantine")] == ["backends/r2/attempt-1"]
    assert len(sql("FROM step_floor")) == 5


def test_an_archive_and_records_bring_nodes_and_floors(root: Path, sql: Ask, tmp_path: Path) -> None:
    run_on_node(root)
    collect(root)
    before = [sql(f"FROM {table} ORDER BY ALL") for table in ("nodes", "step_floor", "runs")]
    with store.open_for_reading(root) as connection:
        write_records(connection, "backends", tmp_path / "records")
    with open_records(tmp_path / "records") as connection:
        record_rows = [
            connection.sql(f"FROM {table} ORDER BY ALL").fetchall()
            for table in ("nodes", "step_floor", "runs")
        ]
    assert record_rows == [[tuple(row.values()) for row in rows] for rows in before]
    pack(root, "backends", tmp_path / "b.tar.gz")
    shutil.rmtree(root)
    unpack(tmp_path / "b.tar.gz", root)
    collect(root)
    assert [sql(f"FROM {table} ORDER BY ALL") for table in ("nodes", "step_floor", "runs")] == before


def test_records_of_versions_in_which_every_part_was_one_of_a_step_are_read_as_such(
    root: Path, tmp_path: Path
) -> None:
    run_on_node(root)
    collect(root)
    with store.open_for_reading(root) as connection:
        write_records(connection, "backends", tmp_path / "records")
        write_table(
            connection,
            tmp_path / "records" / "step_floor.parquet",
            "SELECT * EXCLUDE phase FROM step_floor",
        )
        expected = connection.sql("SELECT floor_seconds FROM runs").fetchall()
    with open_records(tmp_path / "records") as connection:
        assert connection.sql("SELECT floor_seconds FROM runs").fetchall() == expected != [(None,)]


def test_a_profile_is_a_row_a_part_with_its_share_of_the_step(root: Path, sql: Ask) -> None:
    folder = completed(root, "r1")
    profile(folder, products=0.3, attention=0.06, idle=0.04)
    collect(root)
    assert sql(
        "SELECT run_id, study, attempt, part, seconds, round(share, 6) AS share FROM step_profile"
    ) == [
        {"run_id": "r1", "study": "backends", "attempt": 1, "part": part, "seconds": seconds, "share": share}
        for part, seconds, share in (("products", 0.3, 0.75), ("attention", 0.06, 0.15), ("idle", 0.04, 0.1))
    ]
    assert sql("SELECT profiled_steps, no_profile FROM attempts") == [
        {"profiled_steps": 2, "no_profile": None}
    ]
    before = store.database(root).stat().st_mtime_ns
    assert (collect(root).updated, store.database(root).stat().st_mtime_ns) == (0, before)


def test_what_other_work_hid_of_a_part_is_beside_its_seconds_and_no_share_of_the_step(
    root: Path, sql: Ask
) -> None:
    folder = completed(root, "r1")
    profile(folder, hidden={"communication": 0.2}, products=0.3, communication=0.1)
    collect(root)
    assert sql("SELECT part, seconds, hidden_seconds AS hidden, share FROM step_profile") == [
        {"part": "products", "seconds": 0.3, "hidden": None, "share": pytest.approx(0.75)},
        {"part": "communication", "seconds": 0.1, "hidden": 0.2, "share": pytest.approx(0.25)},
    ]


def test_a_step_that_could_not_be_profiled_has_the_reason_and_no_parts(root: Path, sql: Ask) -> None:
    folder = completed(root, "r1")
    step_profile = StepProfile(run_id="r1", attempt=1, steps=0, reason="OutOfMemoryError: no")
    files.write(folder.path / "attempt-1" / "profile.json", step_profile)
    completed(root, "r2")
    collect(root)
    assert sql("SELECT profiled_steps AS n, no_profile FROM attempts ORDER BY run_id") == [
        {"n": 0, "no_profile": "OutOfMemoryError: no"},
        {"n": None, "no_profile": None},
    ]
    assert sql("FROM step_profile") == []


@pytest.mark.fault
@pytest.mark.parametrize(
    "content", ["{", '{"run_id": "r2", "attempt": 1, "steps": 0}'], ids=["torn", "another run"]
)
def test_a_profile_that_cannot_be_read_is_quarantined_alone(root: Path, sql: Ask, content: str) -> None:
    folder = completed(root, "r1")
    (folder.path / "attempt-1" / "profile.json").write_text(content)
    collect(root)
    assert [row["path"] for row in sql("FROM quarantine")] == ["backends/r1/attempt-1/profile.json"]
    assert sql("SELECT outcome, counted_records > 0 AS timed FROM runs") == [
        {"outcome": "completed", "timed": True}
    ]


@pytest.mark.fault
def test_a_profile_stays_when_its_file_is_purged(root: Path, sql: Ask, tmp_path: Path) -> None:
    folder = completed(root, "r1")
    profile(folder, products=0.3, idle=0.1)
    collect(root)
    pack(root, "backends", tmp_path / "b.tar.gz")
    (folder.path / "attempt-1" / "profile.json").unlink()
    collect(root)
    assert len(sql("FROM step_profile")) == 2
    unpack(tmp_path / "b.tar.gz", tmp_path / "there")
    assert (tmp_path / "there" / "backends" / "r1" / "attempt-1" / "profile.json").is_file()
