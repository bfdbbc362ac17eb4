"""Audits during runs get into the database, are counted, and outlive their files; old records have none."""

from __future__ import annotations

import math
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from analysis.store.collect import collect
from analysis.store.database import open_for_reading
from analysis.store.records import open_records, write_records
from tests.analysis.conftest import Ask
from tests.analysis.fabricate import Folder, completed, plan

COUNTS = "SELECT audits, audits_passed, audit_ratio FROM runs"


def audited(root: Path) -> Folder:
    folder = completed(root, "r1")
    folder.audit(17)
    folder.audit(64, dk=0.6)
    return folder


def test_an_audit_is_a_row_with_its_place_and_its_errors(root: Path, sql: Ask) -> None:
    audited(root)
    collect(root)
    first, second = sql("SELECT * EXCLUDE (time, tensors) FROM audits ORDER BY step")
    assert first == {
        "study": "backends", "run_id": "r1", "attempt": 1, "step": 17, "layer": 3, "sample": 0, "first_head": 4,
        "heads": 4, "row_count": 4096, "first_row": 0, "passed": True, "reason": None, "ratio": 0.5, "o_ratio": 0.5,
        "dq_ratio": 0.5, "dk_ratio": 0.5, "dv_ratio": 0.5, "seconds": 0.02, "keys": None,
    }  # fmt: skip
    assert second["ratio"] == second["dk_ratio"] == pytest.approx(0.75)
    (tensors,) = sql("SELECT tensors -> 'dk' AS dk FROM audits WHERE step = 64")
    assert '"measured":0.6' in tensors["dk"]
    assert sql(COUNTS) == [{"audits": 2, "audits_passed": 2, "audit_ratio": pytest.approx(0.75)}]


def test_a_run_counts_the_audits_of_all_its_attempts(root: Path, sql: Ask) -> None:
    folder = Folder(root, plan("r1"))
    folder.start()
    folder.audit(17)
    folder.audit(64, dq=3.0)
    folder.end("failed", steps=64)
    folder.start(attempt=2)
    folder.audit(17, attempt=2)
    folder.end(attempt=2)
    collect(root)
    assert sql(COUNTS) == [{"audits": 3, "audits_passed": 2, "audit_ratio": pytest.approx(3.75)}]
    assert sql("SELECT attempt, reason FROM audits WHERE NOT passed") == [
        {"attempt": 1, "reason": "dq is off"}
    ]


def test_a_result_that_is_not_finite_is_infinitely_wrong(root: Path, sql: Ask) -> None:
    folder = completed(root, "r1")
    folder.audit(17, o=None)
    collect(root)
    assert sql("SELECT o_ratio, passed FROM audits") == [{"o_ratio": math.inf, "passed": False}]


def test_a_run_without_audits_says_unknown_and_not_none_failed(root: Path, sql: Ask) -> None:
    completed(root, "r1")
    collect(root)
    assert sql(COUNTS) == [{"audits": None, "audits_passed": None, "audit_ratio": None}]


def test_a_new_audit_is_collected_and_a_torn_one_is_normal(root: Path, sql: Ask) -> None:
    folder = audited(root)
    collect(root)
    folder.audit(81)
    path = folder.path / "attempt-1" / "audits.jsonl"
    with path.open("a") as file:
        file.write('{"schema_version":1,"step":9')
    assert collect(root).quarantined == 0
    assert sql("SELECT step FROM audits ORDER BY step") == [{"step": 17}, {"step": 64}, {"step": 81}]


@pytest.mark.fault
def test_audits_that_cannot_be_read_are_quarantined_and_the_rest_of_the_run_is_not(
    root: Path, sql: Ask
) -> None:
    folder = audited(root)
    path = folder.path / "attempt-1" / "audits.jsonl"
    path.write_text("{}\n" + path.read_text())
    collect(root)
    assert sql("FROM audits") == []
    assert sql("SELECT outcome, audits FROM runs") == [{"outcome": "completed", "audits": None}]
    ((quarantined_path,),) = [list(row.values()) for row in sql("SELECT path FROM quarantine")]
    assert quarantined_path == "backends/r1/attempt-1/audits.jsonl"


@pytest.mark.fault
@pytest.mark.parametrize("name", ["attempt-1/audits.jsonl", "attempt-1/steps.jsonl", "run.json"])
def test_audits_outlive_files_that_were_purged(name: str, root: Path, sql: Ask) -> None:
    folder = audited(root)
    collect(root)
    before = sql("FROM audits ORDER BY ALL")
    (folder.path / name).unlink()
    folder.start(attempt=2)
    collect(root)
    assert sql("FROM audits ORDER BY ALL") == before


def test_records_carry_audits(root: Path, tmp_path: Path) -> None:
    audited(root)
    collect(root)
    folder = tmp_path / "records"
    with open_for_reading(root) as connection:
        write_records(connection, "backends", folder)
    assert pq.read_table(folder / "audits.parquet").num_rows == 2
    with open_records(folder) as connection:
        assert connection.sql(COUNTS).fetchall() == [(2, 2, pytest.approx(0.75))]
