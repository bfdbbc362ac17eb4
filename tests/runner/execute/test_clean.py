"""`runner gc` frees what is of no more use, and never touches a record, a run in flight, or what a link leads to."""

import os
import shutil
import socket
import time
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analysis.audit.restore import restore
from analysis.export import unpack
from analysis.export.pack import pack
from analysis.report.build import build_report
from analysis.store.collect import collect
from model.record.errors import UserError
from model.record.files import append, write
from model.record.outcome import Outcome
from model.record.records import LedgerEvent, Manifest, Provenance, Result
from runner.execute import clean
from runner.state.filesystem import study_lock
from tests.analysis.fabricate import START, completed, plan

OLD = time.time() - 2 * clean.HOUR_SECONDS
CODE, OTHER = "a" * 64, "b" * 64


def make_run(study, run_id, outcome=None, job_id=None, attempts=1, code=None):
    """A run whose last attempt has this outcome; None: it is in flight."""
    origin = Provenance(
        git_sha=None, git_dirty=None, command=[], version="0", code=code, packages=code, diff=code
    )
    folder = study / run_id
    folder.mkdir(parents=True)
    write(folder / "run.json", plan(run_id, study=study.name, provenance=origin))
    for number in range(1, attempts + 1):
        (folder / f"attempt-{number}").mkdir()
        event = LedgerEvent(
            time=START, event="submitted" if job_id else "claimed", attempt=number, job_id=job_id,
            host=socket.gethostname(), pid=os.getpid(), pid_started=0,
        )  # fmt: skip
        append(folder / "ledger.jsonl", event)
        last = number == attempts
        finish(folder / f"attempt-{number}", run_id, number, outcome if last else Outcome.PREEMPTED)
    return folder


def finish(attempt, run_id, number, outcome):
    write(
        attempt / "manifest.json",
        Manifest(
            run_id=run_id,
            attempt=number,
            started_at=START,
            host="h",
            pid=1,
            pid_started=0,
            slurm={},
            software={},
        ),
    )
    (attempt / "steps.jsonl").touch()
    if outcome:
        end = START + timedelta(seconds=1)
        write(
            attempt / "result.json",
            Result(
                run_id=run_id, attempt=number, outcome=outcome, reason=None, steps=0, final_loss=None,
                peak_memory_bytes=None, started_at=START, ended_at=end, wall_seconds=1,
            ),
        )  # fmt: skip


def put(path, content="x" * 1000, old=True):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    age(path, old)
    return path


def age(path, old=True):
    if old:
        os.utime(path, (OLD, OLD), follow_symlinks=False)


@pytest.fixture
def study(tmp_path):
    (folder := tmp_path / "root" / "study").mkdir(parents=True)
    return folder


def planned(root):
    return {str(item.path.relative_to(root.resolve())) for item in clean.plan(root)}


def everything(folder):
    """Kind, link target or content, by path."""
    entries = {}
    for at, folders, files in os.walk(folder):
        for path in (Path(at, name) for name in (*folders, *files)):
            if path.is_symlink():
                entries[str(path)] = ("link", path.readlink())
            else:
                entries[str(path)] = ("folder", None) if path.is_dir() else ("file", path.read_bytes())
    return entries


def test_the_checkpoint_of_a_completed_run_can_go_and_no_other(study):
    for run_id, outcome in [("done", "completed"), ("fails", "failed"), ("stops", "timeout"), ("busy", None)]:
        run = make_run(study, run_id, outcome and Outcome(outcome), attempts=2)
        put(run / "attempt-2" / "checkpoint" / "state-5.bin")
    put(study / "done" / "attempt-1" / "checkpoint" / "state-2.bin")
    assert planned(study.parent) == {"study/done/attempt-1/checkpoint", "study/done/attempt-2/checkpoint"}
    items = clean.plan(study.parent)
    assert clean.summary(items, "would free") == "would free 2.0 KiB and 4 inodes"
    assert clean.remove(study.parent, items) == items
    assert not list(study.glob("done/*/checkpoint"))
    assert clean.plan(study.parent) == []


def test_temporary_files_go_when_they_are_old_and_their_writer_is_gone(study):
    run, busy = make_run(study, "done", Outcome.COMPLETED), make_run(study, "busy")
    pid = 2**22 + 1  # over every pid
    put(run / f".run.json.{pid}")
    put(run / "attempt-1" / f".result.json.{pid}")
    put(run / "attempt-1" / "checkpoint.part" / "state-1.bin")
    age(run / "attempt-1" / "checkpoint.part")
    put(study.parent / f".results.duckdb.{pid}")
    put(study.parent / ".text.parquet.part")
    put(study / ".code" / f".{CODE}.host.1.part" / "model" / "x.py")
    age(study / ".code" / f".{CODE}.host.1.part")
    put(run / f".run.json.{pid}@{os.uname().nodename}")
    for name in (f".unpacking-a1_b2.{pid}", f"study/.reports/.collecting-a1_b2.{pid}"):
        put(study.parent / name / "run_records.parquet")
        age(study.parent / name)
    paths = planned(study.parent)
    put(run / f".run.json.{os.getpid()}")
    put(run / f".ledger.jsonl.{pid}@another.host")
    put(run / f".ledger.jsonl.{pid}@node.{pid}")
    put(run / f".result.json.{pid}", old=False)
    put(busy / f".run.json.{pid}")
    put(busy / "attempt-1" / "checkpoint.part" / "state-1.bin")
    age(busy / "attempt-1" / "checkpoint.part")
    put(run / "mine.part")
    put(study.parent / ".lock")
    put(study / f".x.{'9' * 30}")
    assert planned(study.parent) == paths
    assert len(paths) == 9


def test_submitits_files_go_with_the_runs_that_their_job_was_about(study):
    make_run(study, "done", Outcome.COMPLETED, job_id="7_0")
    make_run(study, "fails", Outcome.FAILED, job_id="7_1")
    make_run(study, "busy", job_id="8_0")
    make_run(study, "waits", Outcome.COMPLETED, job_id="8_1")
    make_run(study, "requeued", Outcome.PREEMPTED, job_id="9")
    removed = ["7_0_submitted.pkl", "7_1_0_log.out", "7_0_0_result.pkl", "7_submission.sh", "8_1_0_log.err"]
    remaining = [
        "8_0_submitted.pkl",
        "8_submission.sh",
        "9_submitted.pkl",
        "9_submission.sh",
        "9_0_log.out",
        "10_submission.sh",
        "0123abcd.pkl",
    ]
    for name in removed + remaining:
        put(study / ".submitit" / name)
    scripts = {"a": "7_submission.sh", "b": "gone", "c": "8_submission.sh"}
    for name, target in scripts.items():
        (study / ".submitit" / f".submission_file_{name}.sh").symlink_to(study / ".submitit" / target)
    (study / ".submitit" / ".mine.sh").symlink_to("gone")
    removed += [".submission_file_a.sh", ".submission_file_b.sh"]
    assert planned(study.parent) == {f"study/.submitit/{name}" for name in removed}
    shutil.rmtree(study / "busy")
    put(study / ".submitit" / "11_submission.sh", old=False)
    assert planned(study.parent) >= {"study/.submitit/10_submission.sh", "study/.submitit/0123abcd.pkl"}, (
        "nothing is in flight"
    )
    assert not planned(study.parent) & {"study/.submitit/9_submitted.pkl", "study/.submitit/11_submission.sh"}


def add_code(study, name, old=True):
    put(study / ".code" / name / "model" / "__init__.py")
    age(study / ".code" / name, old)
    for suffix in ("lock", "diff"):
        put(study / ".provenance" / f"{name}.{suffix}", old=old)


def test_code_that_no_run_names_goes_an_hour_after_it_was_last_asked_for(study):
    make_run(study, "done", Outcome.COMPLETED, code=CODE)
    add_code(study, CODE)
    add_code(study, OTHER)
    add_code(study, "c" * 64, old=False)
    put(study / ".code" / "mine" / "x.py")
    paths = {f"study/.code/{OTHER}", f"study/.provenance/{OTHER}.lock", f"study/.provenance/{OTHER}.diff"}
    assert planned(study.parent) == paths
    clean.remove(study.parent, clean.plan(study.parent))
    assert sorted(path.name for path in (study / ".code").iterdir()) == [CODE, "c" * 64, "mine"]


@pytest.mark.fault
def test_while_a_run_cannot_be_read_nothing_that_it_may_need_goes(study):
    make_run(study, "done", Outcome.COMPLETED, job_id="1")
    (make_run(study, "torn", Outcome.COMPLETED) / "run.json").write_text("{")
    add_code(study, OTHER)
    put(study / ".submitit" / "1_submitted.pkl")
    assert planned(study.parent) == set()
    shutil.rmtree(study / "torn")
    (study / "empty").mkdir()
    assert len(planned(study.parent)) == 4


def test_a_folder_with_a_record_in_it_stays_whatever_its_name(study):
    run = make_run(study, "done", Outcome.COMPLETED)
    for name in sorted(clean.RECORDS):
        put(run / "attempt-1" / "checkpoint" / "deep" / name)
        assert planned(study.parent) == set(), name
        shutil.rmtree(run / "attempt-1" / "checkpoint")


def test_what_was_not_planned_is_not_removed(study):
    add_code(study, OTHER)
    items = clean.plan(study.parent)[1:]
    add_code(study, "c" * 64)
    assert clean.remove(study.parent, items) == items
    assert len(clean.plan(study.parent)) == 4


@pytest.mark.fault
def test_what_a_launch_took_up_after_the_plan_stays(study):
    add_code(study, OTHER)
    items = clean.plan(study.parent)
    make_run(study, "new", code=OTHER)
    assert clean.remove(study.parent, items) == []
    assert (study / ".code" / OTHER / "model" / "__init__.py").exists()


@pytest.mark.fault
def test_while_a_launch_is_at_work_nothing_of_its_study_goes(study, caplog):
    add_code(study, OTHER)
    items = clean.plan(study.parent)
    with study_lock(study, 0):
        assert clean.remove(study.parent, items) == []
    assert "a launch is running" in caplog.text
    assert len(clean.remove(study.parent, items)) == 3


@pytest.mark.fault
def test_what_cannot_be_removed_is_named_and_the_rest_is_gone(study, monkeypatch):
    add_code(study, OTHER)

    def read_only(path):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(shutil, "rmtree", read_only)
    with pytest.raises(
        UserError, match=r"freed 2.0 KiB and 2 inodes; cannot remove .*bbb: Read-only file system"
    ):
        clean.remove(study.parent, clean.plan(study.parent))


@pytest.mark.fault
def test_a_kill_while_removing_leaves_nothing_half_in_place(study, monkeypatch):
    add_code(study, OTHER)

    def killed(path):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            clean.remove(study.parent, clean.plan(study.parent))
    assert not (study / ".code" / OTHER).exists()
    clean.remove(study.parent, clean.plan(study.parent))
    assert list((study / ".code").iterdir()) == []


def test_links_are_neither_followed_nor_removed(study, tmp_path):
    outside = tmp_path / "outside"
    make_run(outside, "done", Outcome.COMPLETED)
    put(outside / "done" / "attempt-1" / "checkpoint" / "state-1.bin")
    put(outside / ".code" / OTHER / "x.py")
    age(outside / ".code" / OTHER)
    put(outside / ".submitit" / "1_submitted.pkl")
    run = make_run(study, "own", Outcome.COMPLETED)
    links = {
        study.parent / "linked": outside,
        study / "done": outside / "done",
        study / ".code": outside / ".code",
        study / ".submitit": outside / ".submitit",
        run / "attempt-1" / "checkpoint": outside / "done" / "attempt-1" / "checkpoint",
        run / "attempt-2": outside / "done" / "attempt-1",
        study.parent / ".x.part": outside,
    }
    for link, target in links.items():
        link.symlink_to(target)
        age(link)
    files = everything(tmp_path)
    clean.remove(study.parent, clean.plan(study.parent))
    assert {
        path: entry for path, entry in everything(tmp_path).items() if not path.endswith("/.lock")
    } == files


def test_a_root_that_is_a_link_itself_is_cleaned(study, tmp_path):
    add_code(study, OTHER)
    (tmp_path / "runs").symlink_to(study.parent)
    assert clean.rows(tmp_path / "runs", clean.plan(tmp_path / "runs"))[0][0] == f"study/.code/{OTHER}"
    assert len(clean.remove(tmp_path / "runs", clean.plan(tmp_path / "runs"))) == 3


@pytest.mark.fault
def test_a_folder_that_became_a_link_after_the_plan_is_left_alone(study, tmp_path):
    make_run(study, "done", Outcome.COMPLETED)
    put(study / "done" / "attempt-1" / "checkpoint" / "state-1.bin")
    items = clean.plan(study.parent)
    (study / "done" / "attempt-1").rename(tmp_path / "moved")
    (study / "done" / "attempt-1").symlink_to(tmp_path / "moved")
    assert clean.remove(study.parent, items) == []
    assert (tmp_path / "moved" / "checkpoint" / "state-1.bin").exists()


NAMES = st.sampled_from([
    *sorted(clean.RECORDS), "checkpoint", "checkpoint.part", ".x.part", ".run.json.4999999", "attempt-1", "attempt-9",
    ".code", ".provenance", ".submitit", CODE, OTHER, f"{OTHER}.lock", "7_submitted.pkl", "8_0_0_log.out",
    "study", "busy", "done", "x.part", "\n", "é",
])  # fmt: skip
STARTS = st.sampled_from(
    [
        "",
        "study",
        "study/busy",
        "study/busy/attempt-1",
        "study/done",
        "study/done/attempt-1",
        "study/done/attempt-1/checkpoint",
        f"study/.code/{OTHER}",
    ]
)
ENTRIES = st.lists(
    st.tuples(
        STARTS,
        st.lists(NAMES, min_size=1, max_size=3),
        st.sampled_from(["file", "folder", "link"]),
        st.booleans(),
    ),
    max_size=12,
)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(entries=ENTRIES)
def test_whatever_lies_about_records_and_runs_in_flight_and_the_outside_stay(entries, tmp_path_factory):
    base = tmp_path_factory.mktemp("gc")
    root, outside = base / "root", base / "outside"
    make_run(root / "study", "done", Outcome.COMPLETED, job_id="7", code=CODE)
    make_run(root / "study", "busy", job_id="8_0", code=CODE)
    put(outside / "run.json")
    put(outside / "checkpoint" / "state")
    for start, names, kind, old in entries:
        lay(root.joinpath(start, *names), kind, outside, old)
    before = everything(base)
    items = clean.plan(root)
    assert everything(base) == before, "planning reads only"
    removed = clean.remove(root, items)
    after = everything(base)
    lost = before.keys() - after.keys()
    assert {path: after[path] for path in after.keys() & before.keys()} == {
        path: before[path] for path in before.keys() - lost
    }
    assert not [path for path in lost if Path(path).name in clean.RECORDS]
    assert not [path for path in lost if path.startswith((str(outside), str(root / "study" / "busy")))]
    assert not [path for path in lost if f"/.code/{CODE}" in path]
    assert {item.path for item in removed} == {item.path for item in items}
    assert len(lost) == sum(item.inodes for item in items)
    assert clean.plan(root) == []
    shutil.rmtree(base)


def lay(path, kind, outside, old):
    """One entry of a fabricated tree, unless something is in its place."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if kind == "folder":
            path.mkdir()
        elif kind == "link":
            path.symlink_to(outside)
        else:
            with path.open("x") as file:
                file.write("x")
        age(path, old)
    except OSError:
        pass


@pytest.mark.fault
@pytest.mark.parametrize("take", [restore, unpack.unpack])
def test_a_collect_that_is_killed_leaves_a_folder_that_can_go(tmp_path, monkeypatch, take):
    root, other = tmp_path / "root", tmp_path / "other"
    completed(root, "r1")
    collect(root)
    report = build_report(root, "backends", tmp_path / "report").parent
    pack(root, "backends", archive := tmp_path / "runs.tar.gz")
    folders = []

    def killed(*arguments, **_named):
        folders.extend(path for path in other.rglob(".*ing-*"))
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "copytree", killed)
    monkeypatch.setattr(unpack, "_extract", killed)
    with pytest.raises(KeyboardInterrupt):
        take(report if take is restore else archive, other)
    (folder,) = folders
    assert not folder.exists()
    folder = Path(str(folder).replace(f".{os.getpid()}", f".{2**22 + 1}"))  # over every pid
    put(folder / ("run_records.parquet" if take is restore else "run.json"))
    age(folder)
    assert planned(other) == {str(folder.relative_to(other))}
    monkeypatch.setattr(shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        clean.remove(other, clean.plan(other))
    (renamed,) = planned(other)
    assert renamed.endswith(".gc.part")


def test_records_in_a_folder_that_only_looks_unpacked_stay(study):
    gone = 2**22 + 1
    for name in (
        f"study/.unpacking-x.{gone}@{os.uname().nodename}",
        f".unpacking-x.{gone}",
        ".unpacking-x.part",
    ):
        put(study.parent / name / "run.json")
        age(study.parent / name)
    assert not planned(study.parent)
