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

from analysis.audit.restore import Restored, restore
from analysis.query.ask import ask
from analysis.report.build import build_report
from analysis.report.carried import MANIFEST
from analysis.store.collect import collect
from model.record.errors import UserError
from model.record.files import sha256
from tests.analysis.fabricate import Folder, certificate, completed, plan

PUBLISHED = Path(__file__).parents[3] / "reports/published"
RUNS = "SELECT run_id, attempts, steps, final_loss, from_report IS NOT NULL FROM runs ORDER BY run_id"
RUN_ROWS = [("r1", 1, 100, 9.0, True), ("r2", 2, 100, 9.0, True)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs, and their report; the second ended on its second attempt, and has a certificate."""
    root = tmp_path_factory.mktemp("made") / "root"
    completed(root, "r1")
    retried = Folder(root, plan("r2", attention="flash"))
    retried.start(certificate=certificate(root, "flash", case=None).key)
    retried.end("oom_gpu", steps=0)
    retried.start(attempt=2)
    for step in range(5, 101, 5):
        retried.step(step, attempt=2)
    retried.audit(5, attempt=2)
    retried.end(attempt=2, steps=100)
    reported(root, root.parent / "report")
    return root.parent


@pytest.fixture
def root(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made / "root", tmp_path / "root")


@pytest.fixture
def report(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made / "report", tmp_path / "report")


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    return tmp_path / "elsewhere"


def reported(root: Path, out: Path, removed: bool = False) -> Path:
    collect(root)
    return build_report(root, "backends", out, removed=removed, replace=True).parent


def rows(root: Path, sql: str = RUNS) -> list[tuple[object, ...]]:
    """What the database says once it has all that is on disk."""
    collect(root)
    return [*ask(root, sql).rows]


def tables(report: Path) -> dict[str, list[dict[str, str]]]:
    """The tables of a report, but for where its runs came from."""
    return {
        path.name: [
            {name: value for name, value in row.items() if name != "from_report"}
            for row in csv.DictReader(path.read_text().splitlines())
        ]
        for path in (report / "data").glob("*.csv")
    }


def test_what_a_report_carries_makes_the_same_tables_where_nothing_else_is_left(
    root: Path, report: Path, elsewhere: Path, tmp_path: Path
) -> None:
    shutil.rmtree(root)
    assert restore(report, elsewhere) == Restored("backends", runs=2, own=0, again=False)
    assert rows(elsewhere) == RUN_ROWS
    rebuilt = reported(elsewhere, tmp_path / "again")
    assert tables(rebuilt) == tables(report)
    assert "Taken from a report" in (rebuilt / "index.html").read_text()
    assert rows(elsewhere, "SELECT count(*) > 0 FROM verifications") == [(True,)]


@pytest.mark.parametrize("damage", ["nothing", "its version", "all of it", "its content"])
def test_runs_of_a_report_are_in_every_new_database(report: Path, elsewhere: Path, damage: str) -> None:
    restore(report, elsewhere)
    expected = rows(elsewhere)
    database = elsewhere / "results.duckdb"
    if damage == "its version":
        with duckdb.connect(database) as connection:
            connection.execute("UPDATE database_version SET fingerprint = 'of an earlier version'")
    elif damage == "all of it":
        database.unlink()
    elif damage == "its content":
        database.write_bytes(b"damaged")
    inode = database.stat().st_ino if database.exists() else None
    assert rows(elsewhere) == expected == RUN_ROWS
    assert damage != "nothing" or database.stat().st_ino == inode
    assert collect(elsewhere, rebuild=True).runs == 2


def test_of_several_reports_of_a_run_the_one_that_was_collected_last_counts(
    root: Path, report: Path, elsewhere: Path, tmp_path: Path
) -> None:
    early_report = shutil.copytree(report, tmp_path / "early")
    completed(root, "r3")
    late_report = reported(root, tmp_path / "late")
    for folder, repeated, number in (
        (early_report, False, "0001"),
        (early_report, True, "0002"),
        (late_report, False, "0003"),
        (late_report, True, "0004"),
        (early_report, True, "0005"),
    ):
        assert restore(folder, elsewhere).again == repeated
        ((origin, *_), *other_rows) = rows(elsewhere, "SELECT from_report, run_id FROM runs ORDER BY run_id")
        assert f"/{number}-" in str(origin)
        assert [run for _, run in other_rows] == ["r2", "r3"][: len(other_rows)]
    assert len(other_rows) == 2


def test_what_a_later_report_knows_better_of_a_run_counts(elsewhere: Path, tmp_path: Path) -> None:
    folder = Folder(tmp_path / "root", plan("r1"))
    folder.start()
    for step in range(5, 101, 5):
        folder.step(step)
    early_report = reported(tmp_path / "root", tmp_path / "early")
    folder.end()
    late_report = reported(tmp_path / "root", tmp_path / "late")
    restore(early_report, elsewhere)
    assert rows(elsewhere, "SELECT outcome FROM runs") == [(None,)]
    restore(late_report, elsewhere)
    assert rows(elsewhere, "SELECT outcome FROM runs") == [("completed",)]


def test_a_study_that_only_its_report_has_goes_on_with_new_runs(report: Path, elsewhere: Path) -> None:
    completed(elsewhere, "r3")
    restore(report, elsewhere)
    completed(elsewhere, "r4")
    assert [(run, from_report) for run, *_, from_report in rows(elsewhere)] == [
        ("r1", True),
        ("r2", True),
        ("r3", False),
        ("r4", False),
    ]


@pytest.mark.parametrize("first", ["folder", "report"])
def test_a_runs_own_folder_takes_precedence_whichever_comes_first(
    root: Path, report: Path, elsewhere: Path, first: str
) -> None:
    """Also over records that claim the folder's hashes, and the report's come back when the folder goes uncollected."""
    if first == "report":
        restore(report, elsewhere)
        collect(elsewhere)
    folder = completed(elsewhere, "r2", seconds=0.8, attention="flash")
    restored = restore(report, elsewhere)
    assert (restored.runs, restored.own) == (2, 1)
    assert rows(elsewhere, "SELECT run_id, step_seconds, from_report IS NOT NULL FROM runs ORDER BY 1") == [
        ("r1", 0.4, True),
        ("r2", 0.8, False),
    ]
    shutil.rmtree(folder.path)
    assert rows(elsewhere)[1][-1] is False  # its rows are kept, as those of any run whose files are gone
    collect(elsewhere, rebuild=True)
    assert rows(elsewhere) == RUN_ROWS


def test_a_folder_replaces_records_that_were_made_up_for_it(
    root: Path, report: Path, elsewhere: Path
) -> None:
    """Its files may be the very ones whose hashes and times a report names."""
    times = ("step_seconds", "step_seconds_min", "step_seconds_max")
    forge(report, "step_records", ", ".join(f"{name} / 10 AS {name}" for name in times))
    restore(report, elsewhere)
    seconds = "SELECT step_seconds FROM runs WHERE run_id = 'r1'"
    assert rows(elsewhere, seconds) == [(0.04,)]
    shutil.copytree(root / "backends" / "r1", elsewhere / "backends" / "r1")
    assert rows(elsewhere, seconds) == [(0.4,)]


def test_records_that_contradict_each_other_are_refused(report: Path, elsewhere: Path) -> None:
    forge(report, "step_records", "0 AS steps")
    with pytest.raises(
        UserError, match="its records contradict each other: data/records/step_records.parquet"
    ):
        restore(report, elsewhere)


def forge(report: Path, table: str, values: str) -> None:
    """Put other values into columns of a table, and let the manifest list it as it is then."""
    path = report / f"data/records/{table}.parquet"
    query = f"SELECT * REPLACE ({values}) FROM read_parquet('{path}')"
    duckdb.sql(f"COPY ({query}) TO '{path}.new' (FORMAT parquet)")
    Path(f"{path}.new").replace(path)
    manifest = json.loads((report / MANIFEST).read_text())
    manifest["files"][f"data/records/{path.name}"] = sha256(path)
    (report / MANIFEST).write_text(json.dumps(manifest))


def test_a_certificate_of_a_report_says_nothing_of_this_machine(
    root: Path, report: Path, elsewhere: Path
) -> None:
    restore(report, elsewhere)
    assert rows(elsewhere, "FROM backends") == []
    assert rows(elsewhere, "SELECT attention FROM certificates") == [("flash",)]
    shutil.copytree(root / ".certificates", elsewhere / ".certificates")
    assert len(rows(elsewhere, "FROM backends")) == 1
    assert len(rows(elsewhere, "FROM certificates")) == 1


def test_a_report_that_was_damaged_since_is_left_out_with_the_reason(report: Path, elsewhere: Path) -> None:
    restore(report, elsewhere)
    (entry,) = (elsewhere / "backends/.reports").iterdir()
    os.truncate(entry / "run_records.parquet", 50)
    assert rows(elsewhere) == []
    ((path, reason),) = rows(elsewhere, "SELECT path, reason FROM quarantine")
    assert str(path).startswith("backends/.reports/0001-") and reason == "its records have changed since"
    shutil.rmtree(entry)
    assert rows(elsewhere, "FROM quarantine") == []


def test_studies_of_like_names_keep_their_own_runs_and_the_certificates_that_both_name(
    root: Path, elsewhere: Path, tmp_path: Path
) -> None:
    for study in ("a-b", "a_b"):
        shutil.copytree(root, tmp_path / study)
        (tmp_path / study / "backends").rename(tmp_path / study / study)
        for path in (tmp_path / study / study).glob("*/run.json"):
            path.write_text(path.read_text().replace('"backends"', f'"{study}"'))
        collect(tmp_path / study)
        restore(build_report(tmp_path / study, study, tmp_path / f"of-{study}").parent, elsewhere)
    counts = [("a-b", 2), ("a_b", 2)]
    query = "SELECT study, count(*) FROM runs GROUP BY study ORDER BY study"
    assert rows(elsewhere, query) == counts
    certificates = rows(elsewhere, "FROM certificates")
    collect(elsewhere, "a_b")
    collect(elsewhere, rebuild=True)
    assert rows(elsewhere, query) == counts and rows(elsewhere, "FROM certificates") == certificates
    for study, remaining in (("a_b", 1), ("a-b", 0)):
        shutil.rmtree(elsewhere / study)
        assert len(rows(elsewhere, "FROM certificates")) == remaining


@pytest.mark.fault
@pytest.mark.parametrize("pattern", ["*", "run_records.parquet", "attempts.parquet"])
def test_a_report_whose_records_were_purged_is_missed_and_can_be_collected_again(
    report: Path, elsewhere: Path, pattern: str, caplog: pytest.LogCaptureFixture
) -> None:
    restore(report, elsewhere)
    assert rows(elsewhere) == RUN_ROWS
    for path in elsewhere.glob(f"backends/.reports/*/{pattern}"):
        path.unlink()
    assert rows(elsewhere) == []
    assert "what it alone knows is left out" in caplog.text
    restore(report, elsewhere)
    assert rows(elsewhere) == RUN_ROWS
    assert rows(elsewhere, "FROM quarantine") == []


@pytest.mark.fault
@pytest.mark.parametrize("name", ["backends/r1/run.json", ".certificates/KEY.json"])
def test_a_torn_file_of_its_own_hides_what_a_report_knows_only_while_it_is_there(
    root: Path, report: Path, elsewhere: Path, name: str
) -> None:
    restore(report, elsewhere)
    queries = "SELECT count(*) FROM runs", "SELECT count(*) FROM certificates"
    counts = [rows(elsewhere, sql) for sql in queries]
    ((key,),) = rows(elsewhere, "SELECT key FROM certificates")
    torn = elsewhere / name.replace("KEY", str(key))
    torn.parent.mkdir(parents=True, exist_ok=True)
    torn.write_text("{")
    assert [rows(elsewhere, sql) for sql in queries] != counts
    torn.unlink()
    assert [rows(elsewhere, sql) for sql in queries] == counts


@pytest.mark.fault
def test_nothing_in_a_folder_of_reports_stops_a_collect(report: Path, elsewhere: Path) -> None:
    restore(report, elsewhere)
    reports = elsewhere / "backends/.reports"
    (reports / "0002-0123456789ab/run_records.parquet").mkdir(parents=True)
    (reports / "0003-0123456789ab").mkdir()
    (reports / "1x-foo").mkdir()
    (reports / os.fsdecode(b"0004-\xff")).mkdir()
    os.mkfifo(reports / "0005-0123456789ab")
    assert rows(elsewhere) == RUN_ROWS
    assert restore(report, elsewhere).again
    assert rows(elsewhere) == RUN_ROWS


@pytest.mark.refused
@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("run_records", "config", "'{}'"),
        ("run_records", "config", "NULL"),
        ("run_records", "design", "'[]'"),
        ("run_records", "factors", "'[1, 2]'"),
        ("run_records", "factors", "NULL"),
        ("run_records", "why", "'7'"),
        ("attempts", "outcome", "'splendid'"),
        ("step_records", "step_seconds", "'nan'::DOUBLE"),
        ("step_records", "tokens", "9223372036854775807"),
    ],
)
def test_records_that_no_run_writes_are_refused(
    report: Path, elsewhere: Path, table: str, column: str, value: str
) -> None:
    forge(report, table, f"{value} AS {column}")
    with pytest.raises(UserError):
        restore(report, elsewhere)
    assert not elsewhere.exists()


def test_runs_that_the_study_no_longer_had_do_not_come_back(
    root: Path, elsewhere: Path, tmp_path: Path
) -> None:
    removed = {"schema_version": 1, "study": "backends", "file": "/backends.yaml", "removed": {"r1": "seed"}}
    (root / "backends" / ".study.json").write_text(json.dumps(removed))
    restore(reported(root, tmp_path / "report", removed=True), elsewhere)
    assert [run for run, *_ in rows(elsewhere)] == ["r2"]


def test_runs_of_a_report_leave_a_study_that_no_longer_gives_them(report: Path, elsewhere: Path) -> None:
    restore(report, elsewhere)
    removed = {"schema_version": 1, "study": "backends", "file": "/backends.yaml", "removed": {"r1": "seed"}}
    (elsewhere / "backends" / ".study.json").write_text(json.dumps(removed))
    assert rows(elsewhere, "SELECT run_id, in_study FROM runs ORDER BY 1") == [("r1", False), ("r2", True)]


@pytest.mark.parametrize("change", [{"title": "Another"}, {"factors": {"seed": 1}}])
@pytest.mark.parametrize("source", ["folder", "report"])
def test_another_study_of_that_name_is_refused(
    report: Path, elsewhere: Path, tmp_path: Path, change: dict[str, object], source: str
) -> None:
    completed(other := tmp_path / "other", "r9", **change)
    if source == "report":
        restore(reported(other, tmp_path / "first"), elsewhere)
    else:
        shutil.copytree(other, elsewhere)
    before = rows(elsewhere)
    with pytest.raises(UserError, match="collect it with another --root, and compare the two"):
        restore(report, elsewhere)
    assert rows(elsewhere) == before


def _edit(old: str, new: str) -> Callable[[Path], None]:
    def edit(report: Path) -> None:
        text = (report / MANIFEST).read_text()
        assert old in text
        (report / MANIFEST).write_text(text.replace(old, new))

    return edit


def _linked(report: Path) -> None:
    (report / "data/records").rename(report / "there")
    (report / "data/records").symlink_to(report / "there")


@pytest.mark.refused
@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (
            lambda report: os.truncate(report / "data/records/attempts.parquet", 40),
            "attempts.parquet is not what",
        ),
        (lambda report: (report / "data/records/nodes.parquet").unlink(), "nodes.parquet is not what"),
        (lambda report: (report / "data/records/more.parquet").touch(), "more.parquet is not what"),
        (lambda report: shutil.rmtree(report / "data/records"), "attempts.parquet is not what"),
        (lambda report: (report / MANIFEST).unlink(), "data/manifest.json is missing"),
        (_linked, "data/records is a link"),
        (_edit('"records": true', '"records": false'), "carries no records"),
        (_edit('"study": "backends"', '"study": "../up"'), "name the report of one study"),
        (_edit('"study": "backends"', '"study": "results.duckdb"'), "name the report of one study"),
        (_edit('"study": "backends"', '"study": "other"'), "is no run of study other"),
        (_edit('"study": "backends"', '"study": null'), "name the report of one study"),
    ],
)
def test_what_is_no_whole_report_of_one_study_is_refused_and_nothing_is_kept(
    report: Path, elsewhere: Path, harm: Callable[[Path], None], message: str
) -> None:
    harm(report)
    with pytest.raises(UserError, match=re.escape(message)):
        restore(report, elsewhere)
    assert not elsewhere.exists()


@pytest.mark.refused
@pytest.mark.parametrize(
    ("report", "subject"), [("lsai-and-backends-full", "a comparison"), (".", "an index of reports")]
)
def test_a_report_that_is_of_no_one_study_is_refused(report: str, subject: str, elsewhere: Path) -> None:
    with pytest.raises(UserError, match=f"is {subject}: name the report of one study"):
        restore(PUBLISHED / report, elsewhere)
    assert not elsewhere.exists()
