"""Collecting: run folders into the database, incrementally, whatever state the folders are in."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.store import collect as collecting
from analysis.store import database as store
from analysis.store import steps
from analysis.store.collect import CollectSummary, collect
from model.record.errors import UserError
from tests.analysis.conftest import Ask
from tests.analysis.fabricate import Folder, certificate, completed, plan

TABLES = (
    *("run_records", "attempts", "step_records", "files", "quarantine", "runs", "steps", "labels"),
    *("certificates", "verifications", "tensor_errors", "backends"),
)
RUN = "(study, run_id)"
CERTIFICATE = "('.certificates', certificate)"
KEYS = {
    "certificates": "('.certificates', key)",
    "verifications": CERTIFICATE,
    "tensor_errors": CERTIFICATE,
    "backends": CERTIFICATE,
}
STRAY = "SELECT DISTINCT file FROM step_lines ANTI JOIN step_files USING (file)"
GONE = "SELECT (study, run_id) FROM files WHERE missing_since IS NOT NULL"


def contents(root: Path, gone: bool = True) -> dict[str, list[tuple[Any, ...]]]:
    """Every table's rows, order apart; without those that only the database still has if `gone` is false."""
    with store.open_for_reading(root) as connection:
        assert connection.execute(STRAY).fetchall() == [], "rows of no file are left"
        return {
            table: sorted(
                connection.execute(
                    f"SELECT * FROM {table}"
                    + ("" if gone else f" WHERE {KEYS.get(table, RUN)} NOT IN ({GONE})")
                ).fetchall(),
                key=repr,
            )
            for table in TABLES
        }


def test_counts_what_it_found(root: Path) -> None:
    completed(root, "r1")
    completed(root, "r2", attention="flash")
    assert collect(root) == CollectSummary(
        runs=2, attempts=2, steps=42, quarantined=0, certificates=0, updated=2, unchanged=0, missing=0
    )


def test_an_unchanged_folder_is_not_read_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    completed(root, "r1")
    collect(root)
    before = store.database(root).stat().st_mtime_ns
    monkeypatch.setattr(steps, "load", lambda *_: pytest.fail("read again"))
    summary = collect(root)
    assert (summary.updated, summary.unchanged) == (0, 1)
    assert store.database(root).stat().st_mtime_ns == before


def test_many_batches_give_what_one_gives(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each starts from what the one before left in the same tables, also where rows are replaced."""
    monkeypatch.setattr(collecting, "_RUNS", replace(collecting._RUNS, batch=1))
    folders = [completed(root, f"r{seed}", seed=seed) for seed in range(8)]
    collect(root)
    for folder in folders[:4]:
        folder.step(200)
    (folders[4].path / "attempt-1" / "steps.jsonl").write_text("{]\n{}\n")
    shutil.rmtree(folders[5].path)
    assert collect(root) == CollectSummary(
        runs=8, attempts=8, steps=7 * 21 + 4, quarantined=1, certificates=0, updated=5, unchanged=2, missing=1
    )
    replaced = contents(root, gone=False)
    monkeypatch.undo()
    collect(root, rebuild=True)
    assert contents(root) == replaced


def test_a_touched_folder_with_the_same_content_is_not_read_again(root: Path) -> None:
    folder = completed(root, "r1")
    collect(root)
    os.utime(folder.path / "run.json", ns=(1, 1))
    assert collect(root).updated == 0
    assert collect(root).unchanged == 1


def test_new_steps_of_a_running_attempt_are_added(root: Path, sql: Ask) -> None:
    folder = Folder(root, plan("r1"))
    folder.event("claimed", executor="local")
    folder.start()
    folder.step(5)
    collect(root)
    folder.step(10)
    assert collect(root).updated == 1
    assert sql("SELECT step FROM steps ORDER BY step") == [{"step": 5}, {"step": 10}]


def test_one_study_leaves_the_others_rows_alone(root: Path, sql: Ask) -> None:
    completed(root, "r1", study="one")
    completed(root, "r1", study="two")
    collect(root)
    shutil.rmtree(root / "one" / "r1")
    shutil.rmtree(root / "two" / "r1")
    assert collect(root, "one").missing == 1
    assert sql("SELECT study FROM runs WHERE missing_since IS NOT NULL") == [{"study": "one"}]


def test_the_same_run_in_two_studies_stays_apart(root: Path, sql: Ask) -> None:
    completed(root, "r1", seconds=0.4, study="one")
    completed(root, "r1", seconds=0.8, study="two")
    collect(root)
    rates = sql("SELECT study, tokens_per_second FROM runs ORDER BY study")
    assert [row["tokens_per_second"] for row in rates] == [10240, 5120]


def test_an_unknown_study_names_those_there_are(root: Path) -> None:
    completed(root, "r1", study="backends")
    with pytest.raises(UserError, match=r"did you mean 'backends'\? valid: backends"):
        collect(root, "backend")


def test_a_root_without_runs_says_how_to_start_some(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"no runs of study 'backends' .*\(nor of any other: start some with `runner launch"
    ):
        collect(tmp_path, "backends")


def test_a_missing_root_is_a_users_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="launch a study first"):
        collect(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "content", [b"", b'{"schema_version": 1, "run_', b"\x00\xff\xfe\x80binary", b"[]", b"{}"]
)
def test_a_run_json_that_cannot_be_read_is_quarantined_alone(root: Path, sql: Ask, content: bytes) -> None:
    folder = completed(root, "r1")
    completed(root, "r2")
    (folder.path / "run.json").write_bytes(content)
    assert collect(root).quarantined == 1
    (row,) = sql("SELECT path, reason FROM quarantine")
    assert row["path"] == "backends/r1/run.json"
    assert row["reason"]
    assert str(root) not in row["reason"]
    assert sql("SELECT run_id FROM runs") == [{"run_id": "r2"}]


@pytest.mark.parametrize("name", ["manifest.json", "result.json"])
def test_an_attempts_bad_file_leaves_the_rest_of_the_run(root: Path, sql: Ask, name: str) -> None:
    folder = completed(root, "r1")
    (folder.path / "attempt-1" / name).write_bytes(b"\x00garbage")
    collect(root)
    assert [row["path"] for row in sql("SELECT path FROM quarantine")] == [f"backends/r1/attempt-1/{name}"]
    assert sql("SELECT outcome, (SELECT count(*) FROM steps) AS steps FROM runs") == [
        {"outcome": "completed", "steps": 21}
    ]


@pytest.mark.parametrize(
    "line",
    [b"\x00\x00\x00\n", b"[1]\n", b'{"step": 7}\n', b'{"schema_version": 2, "step": "x"}\n', b"null\n"],
)
def test_a_bad_line_before_the_last_quarantines_its_file_and_no_other(
    root: Path, sql: Ask, line: bytes
) -> None:
    for number in range(5):
        completed(root, f"r{number}")
    steps = root / "backends" / "r3" / "attempt-1" / "steps.jsonl"
    steps.write_bytes(steps.read_bytes() + line + steps.read_bytes())
    assert collect(root).quarantined == 1
    assert [row["path"] for row in sql("SELECT path FROM quarantine")] == [
        "backends/r3/attempt-1/steps.jsonl"
    ]
    counts = sql(
        "SELECT r.run_id, count(s.step) AS n FROM runs r LEFT JOIN steps s USING (run_id) GROUP BY ALL"
    )
    assert {row["run_id"]: row["n"] for row in counts} == {"r0": 21, "r1": 21, "r2": 21, "r3": 0, "r4": 21}
    assert sql("SELECT count(*) AS n FROM step_lines") == [{"n": 4 * 21}], "nothing of that file is left"


@pytest.mark.parametrize("torn", [b'{"schema_version": 1, "st', b'{"schema_version":1,"step":1', b"\x00\x00"])
def test_a_torn_last_line_is_normal(root: Path, sql: Ask, torn: bytes) -> None:
    folder = completed(root, "r1")
    with (folder.path / "attempt-1" / "steps.jsonl").open("ab") as file:
        file.write(torn)
    assert collect(root).quarantined == 0
    assert len(sql("FROM steps")) == 21


def test_an_empty_steps_file_has_no_steps(root: Path) -> None:
    folder = completed(root, "r1")
    (folder.path / "attempt-1" / "steps.jsonl").write_bytes(b"")
    summary = collect(root)
    assert (summary.steps, summary.quarantined, summary.runs) == (0, 0, 1)


def test_a_mended_file_leaves_quarantine(root: Path) -> None:
    folder = completed(root, "r1")
    content = (folder.path / "run.json").read_bytes()
    (folder.path / "run.json").write_bytes(content[:40])
    assert collect(root).quarantined == 1
    (folder.path / "run.json").write_bytes(content)
    summary = collect(root)
    assert (summary.quarantined, summary.runs) == (0, 1)


def test_a_copied_folder_does_not_count_twice(root: Path, sql: Ask) -> None:
    folder = completed(root, "r1")
    shutil.copytree(folder.path, folder.path.with_name("copy"))
    shutil.copytree(folder.path / "attempt-1", folder.path / "attempt-2")
    collect(root)
    assert sql("SELECT run_id, outcome FROM runs") == [{"run_id": "r1", "outcome": "completed"}]
    paths = [row["path"] for row in sql("SELECT path FROM quarantine ORDER BY path")]
    assert "backends/copy/run.json" in paths
    assert "backends/r1/attempt-2/result.json" in paths


def test_a_folder_without_records_is_no_run(root: Path) -> None:
    (root / "backends" / "notes").mkdir(parents=True)
    summary = collect(root)
    assert (summary.runs, summary.quarantined) == (0, 0)


def test_records_without_a_plan_are_quarantined(root: Path, sql: Ask) -> None:
    folder = completed(root, "r1")
    (folder.path / "run.json").unlink()
    collect(root)
    assert sql("SELECT path FROM quarantine") == [{"path": "backends/r1/run.json"}]


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_becomes_readable_is_read(root: Path) -> None:
    folder = completed(root, "r1")
    (folder.path / "run.json").chmod(0)
    assert collect(root).quarantined == 1
    (folder.path / "run.json").chmod(0o644)
    assert collect(root).quarantined == 0


def test_a_broken_database_is_rebuilt(root: Path) -> None:
    completed(root, "r1")
    store.database(root).write_bytes(b"not a database" * 1000)
    assert collect(root).runs == 1


def test_a_reader_keeps_its_database_while_another_is_put_in_place(root: Path) -> None:
    completed(root, "r1")
    collect(root)
    with store.open_for_reading(root) as connection:
        completed(root, "r2")
        assert collect(root).runs == 2
        assert connection.execute("SELECT count(*) FROM runs").fetchall() == [(1,)]


def test_a_failed_collect_leaves_the_old_database(
    root: Path, sql: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    completed(root, "r1")
    collect(root)
    completed(root, "r2")

    def fail(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(steps, "load", fail)
    with pytest.raises(KeyboardInterrupt):
        collect(root)
    assert sql("SELECT run_id FROM runs") == [{"run_id": "r1"}]
    assert {path.name for path in root.iterdir() if path.is_file()} == {"results.duckdb", store.LOCK}


def change(root: Path, action: str, number: int) -> None:
    """One thing that happens to a workspace between two collects."""
    path = root / f"s{number % 2}" / f"r{number}"
    if action == "add" and not path.exists():
        completed(root, path.name, study=path.parent.name, steps=30)
    elif action == "delete" and path.exists():
        shutil.rmtree(path)
    elif action == "break" and path.exists():
        (path / "run.json").write_bytes(b"{")
    elif action == "tear" and (path / "attempt-1").exists():
        with (path / "attempt-1" / "steps.jsonl").open("ab") as file:
            file.write(b'{"step": 1,')
    elif action == "touch" and path.exists():
        os.utime(path / "run.json")
    elif action == "certify":
        changed = next((root / ".certificates").glob("*.json"), None) if number == 3 else None
        if changed:
            changed.write_text("{" if changed.stat().st_size % 2 else "")
        else:
            certificate(root, f"a{number % 2}", seconds=number)
    elif action == "uncertify":
        shutil.rmtree(root / ".certificates", ignore_errors=True)


actions = st.tuples(
    st.sampled_from(
        ["add", "add", "delete", "break", "tear", "touch", "collect", "certify", "certify", "uncertify"]
    ),
    st.integers(0, 3),
)


@settings(max_examples=10, deadline=None)
@given(st.lists(actions, max_size=12))
def test_increments_and_a_rebuild_give_the_same_tables(history: list[tuple[str, int]]) -> None:
    """Files are truth: however the database came about, it holds what a rebuild would, and what is gone."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for action, number in history:
            if action == "collect":
                collect(root)
            else:
                change(root, action, number)
        collect(root)
        grown = contents(root, gone=False)
        collect(root, rebuild=True)
        assert contents(root) == grown
        store.database(root).unlink()
        collect(root)
        assert contents(root) == grown
