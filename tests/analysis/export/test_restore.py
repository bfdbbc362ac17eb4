"""A report's runs in another workspace: the same tables, beside the runs that are there, and nothing else."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest

from analysis.export.restore import Restored, restore
from analysis.query.ask import ask
from analysis.report.build import build_report
from analysis.report.carried import MANIFEST
from analysis.store.collect import collect
from model.record.errors import UserError
from tests.analysis.fabricate import Folder, certificate, completed, plan

PUBLISHED = Path(__file__).parents[3] / "reports/published"
RUNS = "SELECT run_id, attempts, steps, missing_since IS NOT NULL AS gone FROM runs ORDER BY run_id"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two runs; the second ended on its second attempt, and has a certificate."""
    root = tmp_path / "root"
    completed(root, "r1")
    second = Folder(root, plan("r2", attention="flash"))
    second.start(certificate=certificate(root, "flash", case=None).key)
    second.end("oom_gpu", steps=0)
    second.start(attempt=2)
    for step in range(5, 101, 5):
        second.step(step, attempt=2)
    second.audit(5, attempt=2)
    second.end(attempt=2, steps=100)
    return root


@pytest.fixture
def report(root: Path, tmp_path: Path) -> Path:
    collect(root)
    return build_report(root, "backends", tmp_path / "report").parent


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    return tmp_path / "elsewhere"


def tables(report: Path) -> dict[str, list[dict[str, str]]]:
    """The tables of a report, but for when files were noticed to be gone."""
    return {
        path.name: [
            {name: value for name, value in row.items() if name != "missing_since"}
            for row in csv.DictReader(path.read_text().splitlines())
        ]
        for path in (report / "data").glob("*.csv")
    }


def test_what_a_report_carries_makes_the_same_tables_where_nothing_else_is_left(
    root: Path, report: Path, elsewhere: Path, tmp_path: Path
) -> None:
    shutil.rmtree(root)
    assert restore(report, elsewhere) == Restored("backends", added=2, there=0, others=[])
    assert collect(elsewhere).runs == 2
    again = build_report(elsewhere, "backends", tmp_path / "again")
    assert tables(again.parent) == tables(report)
    assert re.search(r"[Ff]iles of 2 runs are gone", again.read_text())
    assert ask(elsewhere, "SELECT count(*) FROM verifications").rows[0][0] > 0


def test_a_report_twice_adds_nothing_and_its_runs_outlive_a_new_version_of_the_database(
    report: Path, elsewhere: Path
) -> None:
    restore(report, elsewhere)
    first = ask(elsewhere, RUNS).rows
    assert restore(report, elsewhere) == Restored("backends", added=0, there=2, others=[])
    assert ask(elsewhere, RUNS).rows == first == (("r1", 1, 100, True), ("r2", 2, 100, True))
    with duckdb.connect(elsewhere / "results.duckdb") as connection:
        connection.execute("UPDATE database_version SET fingerprint = 'of an earlier version'")
    collect(elsewhere)
    assert ask(elsewhere, RUNS).rows == first


def test_a_study_that_only_its_report_has_goes_on_with_new_runs(report: Path, elsewhere: Path) -> None:
    completed(elsewhere, "r3")
    assert restore(report, elsewhere).added == 2
    completed(elsewhere, "r4")
    collect(elsewhere)
    assert [(run, gone) for run, _, _, gone in ask(elsewhere, RUNS).rows] == [
        ("r1", True),
        ("r2", True),
        ("r3", False),
        ("r4", False),
    ]


def test_runs_that_are_there_stay_and_those_with_other_records_are_named(
    root: Path, report: Path, elsewhere: Path
) -> None:
    shutil.copytree(root / "backends" / "r1", elsewhere / "backends" / "r1")
    completed(elsewhere, "r2", seconds=0.5)
    before = ask_after_collect(elsewhere)
    assert restore(report, elsewhere) == Restored("backends", added=0, there=1, others=["r2"])
    collect(elsewhere)
    assert ask(elsewhere, RUNS).rows == before


def ask_after_collect(root: Path) -> object:
    collect(root)
    return ask(root, RUNS).rows


def test_runs_that_the_study_no_longer_had_do_not_come_back(
    root: Path, elsewhere: Path, tmp_path: Path
) -> None:
    (root / "backends" / ".study.json").write_text(
        json.dumps(
            {"schema_version": 1, "study": "backends", "file": "/backends.yaml", "removed": {"r1": "seed"}}
        )
    )
    collect(root)
    report = build_report(root, "backends", tmp_path / "report", removed=True).parent
    assert restore(report, elsewhere).added == 1
    assert [run for run, *_ in ask(elsewhere, RUNS).rows] == ["r2"]


def _edit(old: str, new: str) -> Callable[[Path], None]:
    def edit(report: Path) -> None:
        text = (report / MANIFEST).read_text()
        assert old in text
        (report / MANIFEST).write_text(text.replace(old, new))

    return edit


@pytest.mark.refused
@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (
            lambda report: os.truncate(report / "data/records/attempts.parquet", 40),
            "has changed: `runner audit",
        ),
        (lambda report: (report / "data/records/nodes.parquet").unlink(), "has changed: `runner audit"),
        (lambda report: (report / MANIFEST).unlink(), "data/manifest.json is missing"),
        (_edit('"records": true', '"records": false'), "carries no records"),
        (_edit('"study": "backends"', '"study": "../up"'), "name the report of one study"),
        (_edit('"study": "backends"', '"study": "other"'), "is no run of study other"),
        (_edit('"study": "backends"', '"study": null'), "name the report of one study"),
    ],
)
def test_what_is_no_whole_report_of_one_study_is_refused_and_nothing_is_added(
    report: Path, elsewhere: Path, harm: Callable[[Path], None], message: str
) -> None:
    harm(report)
    with pytest.raises(UserError, match=re.escape(message)):
        restore(report, elsewhere)
    assert not elsewhere.exists() or ask_after_collect(elsewhere) == ()


@pytest.mark.refused
@pytest.mark.parametrize(
    ("report", "subject"), [("lsai-and-backends-full", "a comparison"), (".", "an index of reports")]
)
def test_a_report_that_is_of_no_one_study_is_refused(report: str, subject: str, elsewhere: Path) -> None:
    with pytest.raises(UserError, match=f"is {subject}: name the report of one study"):
        restore(PUBLISHED / report, elsewhere)
    assert not elsewhere.exists()
