"""Certificates in the database: read once, replaced, quarantined and forgotten as run folders are."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from analysis.store import collect as module
from analysis.store import database as store
from analysis.store.collect import collect, collect_certificates
from model.record.errors import UserError
from tests.analysis.conftest import Ask
from tests.analysis.fabricate import CASE, Folder, certificate, check, completed, number, plan


def file_of(root: Path, key: str) -> Path:
    return root / ".certificates" / f"{key}.json"


def test_a_certificate_is_a_row_and_each_of_its_checks_is_one(root: Path, sql: Ask) -> None:
    record = certificate(root, "flash", "wrong", not_looked_at=["B1 T7 H1 K1 D7: head dim 7"])
    summary = collect(root)
    assert (summary.runs, summary.certificates, summary.quarantined) == (0, 1, 0)
    (row,) = sql("SELECT * FROM certificates")
    assert (row["key"], row["attention"], row["verdict"]) == (record.key, "flash", "wrong")
    assert (row["checks"], row["failed"], row["dtype"]) == (8, 1, "bfloat16")
    assert row["shape"] == "B1 T4096 H32 K8 D128 bfloat16 causal"
    assert json.loads(row["run_case"])["kv_heads"] == 8
    assert json.loads(row["reasons"]) == record.reasons
    assert json.loads(row["not_looked_at"]) == record.not_looked_at
    rows = sql("SELECT * FROM verifications ORDER BY place")
    assert [row["name"] for row in rows] == [check.name for check in record.checks]
    assert rows[0]["reason"] == record.checks[0].reason
    assert {row["certificate"] for row in rows} == {record.key}


def test_a_certificate_for_no_run_has_no_case(root: Path, sql: Ask) -> None:
    certificate(root, "flash", case=None)
    collect(root)
    assert sql("SELECT dtype, shape, run_case FROM certificates") == [
        {"dtype": None, "shape": None, "run_case": None}
    ]


def test_an_attempt_names_its_certificate(root: Path, sql: Ask) -> None:
    record = certificate(root, "auto")
    folder = Folder(root, plan("r1"))
    folder.start(certificate=record.key)
    collect(root)
    query = "SELECT r.attention, c.verdict FROM runs r JOIN certificates c ON c.key = r.certificate"
    assert sql(query) == [{"attention": "auto", "verdict": "right"}]


def test_an_unchanged_certificate_is_not_read_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate(root, "flash")
    collect(root)
    before = store.database(root).stat().st_mtime_ns
    monkeypatch.setattr(module, "_read_batch", lambda *_: pytest.fail("read again"))
    assert collect(root).certificates == 1
    assert store.database(root).stat().st_mtime_ns == before


def test_a_certificate_made_again_replaces_the_one_before(root: Path, sql: Ask) -> None:
    certificate(root, "flash", "wrong")
    collect(root)
    certificate(root, "flash")
    collect(root)
    assert sql("SELECT verdict, failed FROM certificates") == [{"verdict": "right", "failed": 0}]
    assert sql("SELECT count(*) AS n FROM verifications WHERE NOT passed") == [{"n": 0}]


def test_a_deleted_certificate_disappears(root: Path, sql: Ask) -> None:
    record = certificate(root, "flash")
    certificate(root, "math")
    collect(root)
    file_of(root, record.key).unlink()
    collect(root)
    assert sql("SELECT attention FROM certificates") == [{"attention": "math"}]
    assert sql("SELECT DISTINCT attention FROM verifications") == [{"attention": "math"}]


@pytest.mark.parametrize("content", [b"", b'{"schema_version": 1, "back', b"\x00\xff\xfe", b"[]", b"{}"])
def test_a_certificate_that_cannot_be_read_is_quarantined_alone(root: Path, sql: Ask, content: bytes) -> None:
    completed(root, "r1")
    record = certificate(root, "flash")
    certificate(root, "math")
    file_of(root, record.key).write_bytes(content)
    assert collect(root).quarantined == 1
    (row,) = sql("SELECT study, path, reason FROM quarantine")
    assert (row["study"], row["path"]) == (".certificates", f".certificates/{record.key}.json")
    assert row["reason"]
    assert str(root) not in row["reason"]
    assert sql("SELECT attention FROM certificates") == [{"attention": "math"}]
    assert sql("SELECT run_id FROM runs") == [{"run_id": "r1"}]
    certificate(root, "flash")
    assert collect(root).quarantined == 0


def test_a_copied_certificate_does_not_count_twice(root: Path, sql: Ask) -> None:
    record = certificate(root, "flash")
    file_of(root, "copy").write_bytes(file_of(root, record.key).read_bytes())
    collect(root)
    assert sql("SELECT key FROM certificates") == [{"key": record.key}]
    assert sql("SELECT run_id FROM quarantine") == [{"run_id": "copy"}]


def test_a_certificate_that_is_being_written_is_not_looked_at(root: Path) -> None:
    certificate(root, "flash")
    (root / ".certificates" / ".a.json.77").write_text("{")
    (root / ".certificates" / ".a.json").write_text("{")
    assert collect(root).quarantined == 0


def test_collecting_one_study_brings_the_certificates(root: Path, sql: Ask) -> None:
    completed(root, "r1", study="one")
    completed(root, "r1", study="two")
    collect(root)
    certificate(root, "flash")
    assert collect(root, "one").certificates == 1
    assert sql("SELECT study FROM runs ORDER BY study") == [{"study": "one"}, {"study": "two"}]


def test_certificates_alone_leave_the_runs_as_they_are(root: Path, sql: Ask) -> None:
    completed(root, "r1")
    collect(root)
    completed(root, "r2")
    certificate(root, "flash")
    collect_certificates(root)
    assert sql("SELECT attention FROM certificates") == [{"attention": "flash"}]
    assert sql("SELECT run_id FROM runs") == [{"run_id": "r1"}]
    assert collect(root).updated == 1


def test_a_new_database_of_certificates_is_filled_whole(root: Path, sql: Ask) -> None:
    """Else a collect of one study would find a database, and leave the others out of it for ever."""
    completed(root, "r1", study="one")
    completed(root, "r1", study="two")
    certificate(root, "flash")
    collect_certificates(root)
    collect(root, "one")
    assert sql("SELECT study FROM runs ORDER BY study") == [{"study": "one"}, {"study": "two"}]


def test_certificates_of_a_missing_root_are_a_users_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no folder"):
        collect_certificates(tmp_path / "nowhere")


# What is derived


def test_the_worst_check_of_a_tensor_is_the_one_nearest_its_tolerance(root: Path, sql: Ask) -> None:
    certificate(root, "flash")
    collect(root)
    (row,) = sql("SELECT * FROM tensor_errors WHERE tensor = 'dq'")
    assert (row["measured"], row["tolerance"], row["variant"]) == (0.6, 0.8, "large logits")
    assert row["ratio"] == pytest.approx(0.75)
    assert (row["checks"], row["failed"]) == (2, 0)


def test_a_relative_error_is_of_plain_data_and_never_of_a_zero(root: Path, sql: Ask) -> None:
    decode_shape = "B2 T1 H4 K1 D64 bfloat16 causal"
    checks = [
        number("dq", 0.1, 0.6, variant="needle"),
        number("dq", 0.1, 1e294, case=decode_shape),
        number("dq", 0.1, 5e-3, variant="plain, sliced"),
        number("o", 0.1, 7e-3, case=decode_shape),
    ]
    certificate(root, "flash", checks=checks)
    collect(root)
    assert sql("SELECT tensor, relative_error AS e FROM tensor_errors ORDER BY tensor") == [
        {"tensor": "dq", "e": 5e-3},
        {"tensor": "o", "e": 7e-3},
    ]


@pytest.mark.parametrize(
    "failed_check", [number("o", None, None), check("finite", "o", passed=False, reason="o has NaN")]
)
def test_what_is_not_finite_is_infinitely_wrong_and_not_left_out(
    root: Path, sql: Ask, failed_check: object
) -> None:
    certificate(root, "flash", checks=[number("o", 0.1), failed_check, number("dq", 0.1)])
    collect(root)
    rows = sql("SELECT tensor, ratio, measured, failed FROM tensor_errors ORDER BY tensor")
    assert rows[1] == {"tensor": "o", "ratio": math.inf, "measured": None, "failed": 1}
    assert rows[0]["ratio"] == pytest.approx(0.125)


def test_backends_has_the_newest_certificate_that_is_for_no_run(root: Path, sql: Ask) -> None:
    certificate(root, "flash", case=CASE)
    older = certificate(root, "flash", "wrong", case=None, code="old")
    later = older.created_at.replace(year=2027)
    newer = certificate(root, "flash", case=None, created_at=later)
    certificate(root, "flash", case=None, device="cpu", device_name="a CPU")
    certificate(root, "flash4", "unsupported", case=None)
    collect(root)
    rows = sql("SELECT * FROM backends ORDER BY attention, device_kind DESC")
    assert [(row["attention"], row["device_name"], row["verdict"]) for row in rows] == [
        ("flash", "NVIDIA H200", "right"),
        ("flash", "a CPU", "right"),
        ("flash4", "NVIDIA H200", "unsupported"),
    ]
    assert rows[0]["certificate"] == newer.key
    assert (rows[0]["o_error"], rows[0]["dq_error"], rows[0]["ratio"]) == (4e-3, 5e-3, pytest.approx(0.75))
    assert (rows[2]["o_error"], rows[2]["ratio"]) == (None, None)
