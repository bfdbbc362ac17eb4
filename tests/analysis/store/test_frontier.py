"""Frontiers in the database: a row for each probe, and what they come to."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.audit.records import contradictions
from analysis.store import database as store
from analysis.store.collect import collect
from analysis.store.records import open_records, write_records
from model.record.errors import UserError
from tests.analysis.conftest import Ask
from tests.analysis.sought import frontier

SOUGHT = "SELECT * EXCLUDE (study) FROM frontiers ORDER BY run_id"


def test_each_probe_has_a_row_and_the_largest_that_fits_is_told(root: Path, sql: Ask) -> None:
    outcomes = {8192: "fits", 9216: "oom_gpu", 8704: "fits", 8960: "edge"}
    frontier(root, "r1", "flash", 8192, outcomes)
    assert collect(root).quarantined == 0
    probes = sql("FROM probes ORDER BY number")
    assert [(row["value"], row["outcome"]) for row in probes] == [*outcomes.items()]
    assert (probes[3]["retries"], probes[3]["outside_bytes"]) == (2, 2**29)
    (row,) = sql(SOUGHT)
    assert (row["largest"], row["bound"], row["bound_outcome"], row["is_bounded"]) == (
        8704,
        8960,
        "edge",
        True,
    )
    assert (row["foreseen"], row["holes"], row["probes"], row["unknown"]) == (8192, 0, 4, 0)
    assert row["foreseen_error_percentage"] == pytest.approx(100 * (8192 - 8704) / 8704)
    assert row["forecast_error_percentage"] == pytest.approx(-10, abs=1e-4)
    assert row["peak_bytes"] == 8704 * 2**20


def test_a_value_that_fits_above_one_that_does_not_leaves_a_hole(root: Path, sql: Ask) -> None:
    frontier(root, "r1", "flash", 8192, {8192: "oom_gpu", 7424: "fits", 8448: "fits", 8704: "oom_gpu"})
    collect(root)
    (row,) = sql(SOUGHT)
    assert (row["largest"], row["bound"], row["holes"]) == (8448, 8704, 1)


@pytest.mark.parametrize("ending", ["timeout", "failed"])
def test_a_probe_that_hung_or_died_is_no_bound(root: Path, sql: Ask, ending: str) -> None:
    frontier(root, "r1", "flash", 8192, {8192: "fits", 9216: ending})
    collect(root)
    (row,) = sql(SOUGHT)
    assert (row["largest"], row["bound_outcome"], row["is_bounded"], row["unknown"]) == (
        8192,
        ending,
        False,
        1,
    )


def test_a_search_without_a_fit_has_no_largest(root: Path, sql: Ask) -> None:
    frontier(root, "r1", "math", 512, {512: "oom_gpu", 256: "oom_gpu"})
    frontier(root, "r2", "flash", 512, {512: "fits"}, most=512)
    frontier(root, "r3", "cudnn", 512, {512: "fits"}, most=1024)
    collect(root)
    without_fit, all_fit, unended = sql(SOUGHT)
    assert (without_fit["largest"], without_fit["bound"], without_fit["is_bounded"]) == (None, 256, True)
    assert (all_fit["largest"], all_fit["bound"], all_fit["is_bounded"]) == (512, None, False)
    assert (all_fit["most"], all_fit["foreseen_error_percentage"]) == (512, None)
    assert unended["is_bounded"] is False


def test_records_of_versions_without_probes_are_read(root: Path, tmp_path: Path) -> None:
    frontier(root, "r1", "flash", 8192, {8192: "fits"})
    collect(root)
    with store.open_for_reading(root) as connection:
        write_records(connection, "frontier", tmp_path / "old")
    (tmp_path / "old" / "probes.parquet").unlink()
    with open_records(tmp_path / "old") as connection:
        assert connection.execute("SELECT count(*) FROM frontiers").fetchall() == [(0,)]
        assert connection.execute("SELECT outcome FROM runs").fetchall() == [("completed",)]
    (tmp_path / "old" / "audits.parquet").unlink()
    with pytest.raises(UserError, match="audits.parquet is missing"):
        open_records(tmp_path / "old")


def test_records_that_contradict_each_other_are_told(root: Path, tmp_path: Path) -> None:
    frontier(root, "r1", "flash", 8192, {8192: "fits", 9216: "oom_gpu"})
    collect(root)
    for index, (change, message) in enumerate(
        (
            ("retries = 0", ""),
            ("retries = 3 WHERE outcome = 'fits'", "retries: 3"),
            ("outside_bytes = card_bytes WHERE outcome = 'fits'", "the card has"),
            ("card_bytes = 2 * card_bytes WHERE number = 2", "2 cards"),
            ("outcome = 'timeout' WHERE number = 2", "nothing is known of it"),
        )
    ):
        findings = _contradictions(root, tmp_path / str(index), change)
        assert len(findings) == bool(message) and all(message in finding for finding in findings), (
            change,
            findings,
        )


def _contradictions(root: Path, folder: Path, change: str) -> list[str]:
    folder.mkdir(exist_ok=True)
    with store.open_for_reading(root) as connection:
        write_records(connection, "frontier", folder)
    with open_records(folder) as connection:
        connection.execute(f"UPDATE probes SET {change}")
        return [str(finding) for finding in contradictions(connection) if "probes" in str(finding)]
