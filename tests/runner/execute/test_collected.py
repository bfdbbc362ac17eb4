"""A collect looks at every run that may have ended without a record of it, and at no other."""

import itertools
import shutil

import pytest
from typer.testing import CliRunner

from analysis.store.collect import collect
from analysis.store.database import open_for_reading
from model.record.folder import RunFolder
from model.record.outcome import Outcome
from runner.cli.app import app
from runner.execute import reconcile
from runner.execute.reconcile import collected, must_ask_slurm
from runner.state import ledger
from runner.state.runs import states
from tests.analysis.fabricate import Folder, completed, plan

JOBS = ((True, True), (True, False), (False, False))  # whether it is a job, and may come back


def looked_at(root):
    """The runs of which a collect asks how they ended."""
    pairs = []
    collect(root, settle=pairs.extend)
    return {run for _, run in pairs}


def of_slurm(root, run_id, **changes):
    folder = Folder(root, plan(run_id, study="tiny", **changes))
    folder.event("claimed", executor="slurm")
    folder.event("intent", submission="tiny-1", index=0, count=1, slot=0)
    folder.event("submitted", after=3, executor="slurm", job_id="7")
    folder.start()
    return folder


def outcome(root):
    with open_for_reading(root) as connection:
        return connection.execute("SELECT outcome, reason FROM attempts").fetchall()


def test_runs_that_are_over_or_were_never_started_are_looked_at_once(root):
    for number in range(3):
        completed(root, f"r{number}")
    Folder(root, plan("planned"))
    assert looked_at(root) == {"r0", "r1", "r2", "planned"}
    assert looked_at(root) == set()
    assert collect(root, settle=lambda _: pytest.fail("asked")).unchanged == 4


def test_whatever_ended_or_did_not_those_are_looked_at_that_may_need_an_outcome(root):
    """Every outcome that an attempt may write, and the scheduler; local, and jobs that may come back or not."""
    cases = itertools.product((None, *Outcome), (None, "cancelled", "preempted"), JOBS)
    for number, (own, ending, (job, chain)) in enumerate(cases):
        folder = Folder(root, plan(f"r{number:03}", study="tiny", chain=chain))
        folder.event(
            "claimed", executor="slurm" if job else "local", host="elsewhere", pid=1, pid_started=1.0
        )
        if job:
            folder.event("submitted", executor="slurm", job_id=str(number))
        folder.start()
        if own:
            folder.end(own)
        if ending:
            folder.event("ended", outcome=ending)
    collect(root)
    runs = states(root)
    need = {run.brief.run_id for run in runs if run.in_flight or (run.job_id and must_ask_slurm(run))}
    over = {run.brief.run_id for run in runs if run.outcome and not run.outcome.may_come_back}
    names = looked_at(root)
    assert len(need) > 5
    assert need <= names
    assert not names & over


def claims_again(run):
    assert ledger.claim(RunFolder(run.path), 2, "local")


def claims_and_dies(run):
    """Before the claim is in the ledger."""
    claims_again(run)
    lines = (run.path / "ledger.jsonl").read_text().splitlines(keepends=True)
    (run.path / "ledger.jsonl").write_text("".join(lines[:-1]))


def loses_its_result(run):
    (run.path / "attempt-1" / "result.json").unlink()


def writes_another_result_of_the_same_size(run):
    text = (run.path / "attempt-1" / "result.json").read_text()
    (run.path / "attempt-1" / "result.json").write_text(text.replace("completed", "preempted"))


@pytest.mark.fault
@pytest.mark.parametrize(
    "change",
    [
        claims_again,
        claims_and_dies,
        loses_its_result,
        writes_another_result_of_the_same_size,
        lambda run: run.event("ended", outcome="lost"),
        lambda run: (run.path / "run.json").unlink(),
        lambda run: (run.path / "run.json").write_text("{"),
        lambda run: (run.path / "ledger.jsonl").unlink(),
        lambda run: (run.path / "attempt-1").rename(run.path / "attempt-3"),
    ],
)
def test_what_another_launcher_changed_a_moment_ago_is_looked_at(root, change):
    run = completed(root, "r1")
    completed(root, "r2")
    collect(root)
    change(run)
    assert looked_at(root) == {"r1"}


@pytest.mark.fault
def test_an_attempt_that_has_only_a_claim_and_a_run_that_lost_files_are_looked_at_every_time(root):
    claims_and_dies(completed(root, "claimed"))
    loser = completed(root, "lost")
    collect(root)
    loses_its_result(loser)
    collect(root)
    assert looked_at(root) == {"claimed", "lost"}


def test_a_number_that_was_released_and_claimed_again_is_looked_at(root):
    run = Folder(root, plan("r1"))
    ledger.claim(RunFolder(run.path), 1, "local")
    ledger.release(RunFolder(run.path), 1, "nothing was started")
    collect(root)
    assert looked_at(root) == set()
    ledger.claim(RunFolder(run.path), 1, "local")
    assert looked_at(root) == {"r1"}


@pytest.mark.fault
@pytest.mark.parametrize("damage", ["gone", "broken", "rebuild"])
def test_without_a_database_to_go_by_every_run_is_looked_at(root, damage):
    completed(root, "r1")
    collect(root)
    if damage == "gone":
        (root / "results.duckdb").unlink()
    if damage == "broken":
        (root / "results.duckdb").write_bytes(b"no database")
    pairs = []
    collect(root, rebuild=damage == "rebuild", settle=pairs.extend)
    assert pairs == [("backends", "r1")]


def test_only_the_runs_of_the_study_are_looked_at(root):
    of_slurm(root, "r1")
    completed(root, "r2")
    collect(root)
    pairs = []
    collect(root, "tiny", settle=pairs.extend)
    assert pairs == [("tiny", "r1")]


@pytest.mark.fault
def test_a_job_that_ends_silently_is_collected_with_slurms_word_although_no_file_changed(root, says):
    of_slurm(root, "r1")
    says("squeue")
    says("sacct", "7|RUNNING|0:0|n1|2026-03-01T12:00:00|tiny-1")
    CliRunner().invoke(app, ["--root", str(root), "collect"], catch_exceptions=False)
    assert outcome(root) == [(None, None)]
    started = ledger.state(RunFolder(root / "tiny" / "r1")).event("submitted").time.astimezone()
    says("sacct", f"7|NODE_FAIL|0:0|n1|{started:%Y-%m-%dT%H:%M:%S}|tiny-1")
    answer = CliRunner().invoke(app, ["--root", str(root), "collect"], catch_exceptions=False)
    assert "1 run read" in answer.stderr
    assert outcome(root)[0][0] == "node_failed"
    shutil.rmtree(root.parent / "slurm")
    assert collected(root).unchanged == 1  # without Slurm there is nothing left to ask


def test_runs_are_looked_at_under_the_name_of_the_root_that_was_given(root, tmp_path, monkeypatch):
    """Whether an sbatch of a dead launcher still runs is found by the folder in its command line."""
    of_slurm(root, "r1")
    (link := tmp_path / "link").symlink_to(root)
    folders = []
    monkeypatch.setattr(reconcile, "reconciled_runs", folders.extend)
    collected(link)
    assert [folder.path for folder in folders] == [link / "tiny" / "r1"]
