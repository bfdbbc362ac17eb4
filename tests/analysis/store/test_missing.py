"""Scratch filesystems delete old files: what was collected from them stays, marked, until it is dropped on purpose."""

from __future__ import annotations

import logging
import os
import re
import shutil
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import pytest

from analysis.report import facts
from analysis.report.build import build_report
from analysis.store import database as store
from analysis.store.collect import collect
from tests.analysis.conftest import Ask
from tests.analysis.fabricate import Folder, certificate, completed, plan

pytestmark = pytest.mark.fault
RUNS = "SELECT run_id, outcome, tokens_per_second IS NOT NULL AS rated, missing_since IS NOT NULL AS gone FROM runs ORDER BY 1"

# As versions had step records that wrote the attempt's key and settings beside each.
WIDE = """\
CREATE TABLE wide AS FROM step_records;
DROP VIEW step_records;
DROP TABLE step_lines;
DROP TABLE step_files;
ALTER TABLE wide RENAME TO step_records"""


def row(run_id: str, gone: bool) -> dict[str, object]:
    return {"run_id": run_id, "outcome": "completed", "rated": True, "gone": gone}


def test_a_purged_run_keeps_its_rows_marked_and_every_collect_says_so(
    root: Path, sql: Ask, caplog: pytest.LogCaptureFixture
) -> None:
    folder = completed(root, "r1")
    completed(root, "r2")
    collect(root)
    shutil.rmtree(folder.path)
    for _ in range(2):
        caplog.clear()
        assert collect(root).missing == 1
        assert "1 run (backends/r1): no files here; their records are kept" in caplog.text
    assert sql(RUNS) == [row("r1", gone=True), row("r2", gone=False)]
    assert sql("SELECT count(*) AS n FROM steps WHERE run_id = 'r1'") == [{"n": 21}]


def test_a_purged_run_does_not_rewrite_the_database_each_time(root: Path) -> None:
    folder = completed(root, "r1")
    collect(root)
    shutil.rmtree(folder.path)
    collect(root)
    before = store.database(root).stat().st_ino
    assert collect(root).missing == 1
    assert store.database(root).stat().st_ino == before


def test_a_study_whose_folder_is_gone_still_has_a_report_that_says_so(root: Path, tmp_path: Path) -> None:
    completed(root, "r1")
    collect(root)
    shutil.rmtree(root / "backends")
    assert collect(root, "backends").runs == 1
    page = build_report(root, "backends", tmp_path / "out").read_text()
    assert re.search(r"[Ff]iles of 1 run are gone since \d{4}-\d{2}-\d{2}; their records were kept", page)


def test_of_several_runs_whose_files_are_gone_the_first_is_dated() -> None:
    since = [datetime(2026, 3, day, tzinfo=UTC) for day in (2, 1)]
    ((_, text),) = facts.missing([{"missing_since": date, "from_report": None} for date in (*since, None)])
    assert text == "files of 2 runs are gone, the first since 2026-03-01; their records were kept."


@pytest.mark.parametrize(
    "name",
    ["run.json", "ledger.jsonl", "attempt-1/manifest.json", "attempt-1/steps.jsonl", "attempt-1/result.json"],
)
def test_a_file_that_was_purged_takes_no_row_with_it_although_the_run_goes_on(
    root: Path, sql: Ask, name: str
) -> None:
    """What its other attempts write is read all the same, if its plan is still there."""
    folder = completed(root, "r1")
    collect(root)
    columns = "* EXCLUDE (time, superseded)"  # attempt 2 takes the place of a step
    before = sql(f"SELECT {columns} FROM step_records ORDER BY ALL"), sql("FROM attempts")
    (folder.path / name).unlink()
    folder.start(attempt=2)
    folder.step(100, attempt=2)
    collect(root)
    condition = "WHERE attempt = 1"
    assert sql(f"SELECT {columns} FROM step_records {condition} ORDER BY ALL") == before[0]
    assert sql(f"FROM attempts {condition}") == before[1]
    assert sql("SELECT run_id, missing_since IS NOT NULL AS gone FROM runs") == [
        {"run_id": "r1", "gone": True}
    ]
    assert len(sql("FROM attempts")) == (1 if name == "run.json" else 2)
    assert sql("FROM quarantine") == []
    assert sql("SELECT DISTINCT file FROM step_lines ANTI JOIN step_files USING (file)") == []


def test_files_that_come_back_lose_their_mark(root: Path, sql: Ask, tmp_path: Path) -> None:
    folder = completed(root, "r1")
    collect(root)
    shutil.move(folder.path, tmp_path / "archive")
    collect(root)
    shutil.move(tmp_path / "archive", folder.path)
    assert collect(root).missing == 0
    assert sql(RUNS) == [row("r1", gone=False)]


def test_a_run_started_anew_in_an_emptied_folder_replaces_the_old_one(root: Path, sql: Ask) -> None:
    folder = completed(root, "r1")
    collect(root)
    shutil.rmtree(folder.path)
    collect(root)
    restarted = Folder(root, plan("r1"))
    restarted.event("claimed", executor="local", host="login2", pid=8)
    assert collect(root).missing == 0
    assert sql("SELECT outcome, steps, missing_since FROM runs") == [
        {"outcome": None, "steps": None, "missing_since": None}
    ]
    assert sql("FROM step_records") == []


def test_rebuild_drops_what_no_file_says_and_names_it_first(
    root: Path, sql: Ask, caplog: pytest.LogCaptureFixture
) -> None:
    folder = completed(root, "r1")
    completed(root, "r2")
    collect(root)
    shutil.rmtree(folder.path)
    collect(root, rebuild=True)
    assert "--rebuild drops 1 run (backends/r1)" in caplog.text
    assert sql("SELECT run_id FROM runs") == [{"run_id": "r2"}]


@pytest.mark.parametrize("wide", [False, True])
def test_a_new_version_takes_over_what_no_file_says_any_more(root: Path, sql: Ask, wide: bool) -> None:
    """A database of another schema is built anew, as after an update; columns that both have are taken over."""
    folder = completed(root, "r1")
    record = certificate(root, "auto")
    second = Folder(root, plan("r2"))
    second.start(certificate=record.key)
    second.end()
    collect(root)
    shutil.rmtree(folder.path)
    (second.path / "attempt-1" / "manifest.json").unlink()
    shutil.rmtree(root / ".certificates")
    with duckdb.connect(store.database(root)) as connection:
        connection.execute("UPDATE database_version SET fingerprint = 'old'")
        connection.execute("DROP VIEW runs")
        if wide:
            connection.execute(WIDE)
        connection.execute("ALTER TABLE files DROP COLUMN missing_since")
        connection.execute("ALTER TABLE run_records ADD COLUMN of_old_only INTEGER")
    collect(root)
    assert sql("SELECT run_id, device, verdict, missing_since IS NOT NULL AS gone FROM runs ORDER BY 1") == [
        {"run_id": "r1", "device": "NVIDIA H200", "verdict": None, "gone": True},
        {"run_id": "r2", "device": "NVIDIA H200", "verdict": "right", "gone": True},
    ]
    assert len(sql("FROM steps")) == 21


RECORDS = (
    "ledger.jsonl",
    "attempt-1/manifest.json",
    "attempt-1/steps.jsonl",
    "attempt-1/result.json",
    "run.json",
)


@pytest.mark.parametrize("later", [False, True], ids=["as it was", "and changed since"])
@pytest.mark.parametrize("purged", [*((name,) for name in RECORDS), RECORDS[-2:], RECORDS], ids=", ".join)
def test_a_new_version_knows_of_the_same_files_as_collects_from_then_on(
    root: Path, sql: Ask, purged: tuple[str, ...], later: bool
) -> None:
    folder = completed(root, "r1")
    collect(root)
    for name in purged:
        (folder.path / name).unlink()
    remaining = [name for name in RECORDS if name not in purged]
    if later and remaining:
        os.utime(folder.path / remaining[0], (1, 1))
    collect(root)
    files = "SELECT path, missing_since IS NOT NULL AS gone, sha256 FROM files ORDER BY path"
    rows = "SELECT * EXCLUDE (missing_since) FROM runs"
    before = sql(files), sql(rows)
    assert [row["gone"] for row in before[0]].count(True) == len(purged)
    with duckdb.connect(store.database(root)) as connection:
        connection.execute("UPDATE database_version SET fingerprint = 'old'")
    collect(root)
    assert (sql(files), sql(rows)) == before


def test_a_run_taken_over_from_before_a_setting_existed_is_still_compared_with_its_neighbours(
    root: Path, sql: Ask
) -> None:
    folder = completed(root, "r1", attention="math")
    completed(root, "r2", attention="auto")
    collect(root)
    shutil.rmtree(folder.path)
    with duckdb.connect(store.database(root)) as connection:
        connection.execute("UPDATE database_version SET fingerprint = 'old'")
        connection.execute(
            'UPDATE run_records SET config = json_merge_patch(config, \'{"train": {"accumulate": null}}\')'
        )
    collect(root)
    assert sql("SELECT count(DISTINCT other_settings) AS n, count(*) AS runs FROM comparable") == [
        {"n": 1, "runs": 2}
    ]
    assert sql("SELECT DISTINCT config ->> '$.train.accumulate' AS parts FROM runs") == [{"parts": "1"}]


def test_a_database_that_cannot_be_read_is_set_aside_not_overwritten(
    root: Path, sql: Ask, caplog: pytest.LogCaptureFixture
) -> None:
    completed(root, "r1")
    store.database(root).write_bytes(b"not a database" * 1000)
    collect(root)
    assert (root / "results.unreadable.duckdb").read_bytes() == b"not a database" * 1000
    assert "is only in" in caplog.text
    assert len(sql("FROM runs")) == 1


def test_a_certificate_that_a_run_names_stays_when_its_file_is_purged(root: Path, sql: Ask) -> None:
    used, unused = certificate(root, "auto"), certificate(root, "math")
    folder = Folder(root, plan("r1"))
    folder.start(certificate=used.key)
    collect(root)
    for record in (used, unused):
        (root / ".certificates" / f"{record.key}.json").unlink()
    collect(root)
    assert sql("SELECT key FROM certificates") == [{"key": used.key}]
    assert sql("SELECT verdict FROM runs") == [{"verdict": "right"}]


def test_what_cannot_be_read_and_is_gone_leaves_no_trace(root: Path, sql: Ask) -> None:
    folder = completed(root, "r1")
    (folder.path / "run.json").write_bytes(b"{")
    collect(root)
    shutil.rmtree(folder.path)
    assert collect(root).missing == 0
    assert sql("FROM files") == sql("FROM quarantine") == []


@pytest.fixture(autouse=True)
def _messages(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("analysis"), "propagate", True)
    caplog.set_level(logging.INFO)
