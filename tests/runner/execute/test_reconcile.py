"""While Slurm cannot be asked, what is known is shown; a job's number alone does not make it ours."""

import json
import logging
import os
import socket
from datetime import timedelta

import pytest
from typer.testing import CliRunner

from model.record.config import RunConfig
from model.record.folder import RunFolder, run_folders
from model.record.outcome import Outcome
from model.record.records import now
from runner.cli.app import app
from runner.commands.explain import explain
from runner.commands.status import rows, show
from runner.execute import reconcile
from runner.execute.cancel import cancel
from runner.execute.reconcile import reconciled
from runner.execute.slurm.client import job_of
from runner.state import ledger
from runner.state.attempts import jobs_folder
from runner.state.runs import warn_once
from tests.analysis.fabricate import LLAMA, START, Folder, plan

LOCAL = "%Y-%m-%dT%H:%M:%S"


@pytest.fixture(autouse=True)
def _fresh_warnings():
    warn_once.cache_clear()


@pytest.fixture
def submitted(root):
    """A run that was submitted as job 7 at START, and has started."""
    folder = Folder(root, plan("r1", study="tiny", chain=True))
    folder.event("claimed", executor="slurm")
    folder.event("intent", submission="tiny-1", index=0, count=1, slot=0)
    folder.event("submitted", after=3, executor="slurm", job_id="7")
    folder.start()
    return RunFolder(folder.path)


def line(fields, name, submitted=START):
    return f"{fields}|{submitted.astimezone().strftime(LOCAL)}|{name}"


@pytest.mark.fault
@pytest.mark.parametrize("verb", [["status"], ["explain", "r1"], ["collect"], ["gc"], ["report", "tiny"]])
def test_without_slurm_a_verb_says_so_once_and_shows_what_is_known(
    root, submitted, monkeypatch, caplog, tmp_path, verb
):
    """So it is with a root that was copied to a laptop."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(
        "analysis.report.build.build_report", lambda _root, _name, out, *_, **__: out / "index.html"
    )  # takes ten seconds
    monkeypatch.setattr(logging.getLogger("runner"), "propagate", True)
    answer = CliRunner().invoke(app, ["--root", str(root), *verb], catch_exceptions=False)
    assert answer.exit_code == 0, answer.output
    assert [record.getMessage() for record in caplog.records if record.name.startswith("runner")] == [
        "squeue is not on PATH; until Slurm answers, its runs are shown as last known"
    ]
    assert ledger.state(submitted).phase == "running"


@pytest.mark.fault
def test_while_only_accounting_is_down_that_is_said_once(root, submitted, says, caplog):
    says("sacct", code=1)
    says("scontrol", "AccountingStorageType = accounting_storage/slurmdbd")
    says("squeue", line("7|RUNNING|n1", "tiny-1"))
    for _ in range(3):
        assert [state.phase for state in reconciled(root)] == ["running"]
    assert len(caplog.records) == 1


@pytest.mark.fault
def test_a_run_that_stops_while_slurm_is_asked_is_cancelled_and_not_lost(root, submitted, says, tmp_path):
    """`launch --wait` would start a lost run again."""
    other = Folder(tmp_path, plan("r1", study="other"))
    other.start()
    other.end("cancelled")
    move = f"/bin/cp {other.path}/attempt-1/result.json {submitted.path}/attempt-1/result.json"
    says("sacct", line("7|COMPLETED|0:0|n1", "tiny-1"), also=move)
    (state,) = reconciled(root)
    assert state.outcome == "cancelled"


@pytest.fixture
def moving(root, tmp_path):
    """A run whose second attempt is claimed in its first job, 7, and what a shell does when the next one is 9."""
    folder = Folder(root, plan("r1", study="tiny", chain=True))
    for number, job_id in ((1, "7"), (2, "7")):
        folder.event("claimed", attempt=number, executor="slurm")
        folder.event("submitted", attempt=number, after=3, executor="slurm", job_id=job_id)
        if number == 1:
            folder.start()
            folder.end("preempted")
    (folder.path / "attempt-2").mkdir()
    event = ledger.new_event(2, "submitted", executor="slurm", job_id="9").model_dump_json()
    (tmp_path / "line").write_text(f"{event}\n")
    return f"/bin/cat {tmp_path}/line >>{folder.path}/ledger.jsonl"


@pytest.mark.fault
@pytest.mark.parametrize("fields", ["7|COMPLETED|0:0|n1", ""], ids=["over", "unknown"])
def test_a_run_whose_next_job_is_noted_while_slurm_is_asked_goes_on_in_it(root, moving, says, fields):
    says("squeue")
    says("sacct", line(fields, "tiny-1") if fields else "", also=moving)
    (state,) = reconciled(root)
    assert (state.outcome, state.job_id, state.phase) == (None, "9", "queued")


@pytest.mark.fault
def test_a_run_that_moves_into_its_next_job_while_it_is_cancelled_is_cancelled_there(
    root, moving, says, tmp_path
):
    says("squeue", line("9|PENDING|", "tiny-1", now()))
    says("scancel")
    ends = [line("7|COMPLETED|0:0|n1", "tiny-1"), line("9|PENDING|0:0|", "tiny-1", now())]
    says("sacct", "\n".join(ends), also=moving)
    (folder,) = run_folders(root, "tiny")
    assert [state.job_id for state in cancel([ledger.state(folder)])] == ["9"]
    assert "scancel 9" in (tmp_path / "asked").read_text()
    assert ledger.state(RunFolder(folder.path)).outcome == "cancelled"


@pytest.mark.fault
def test_a_run_that_moves_into_its_next_job_while_it_is_told_to_end_is_told_there(
    root, submitted, says, tmp_path
):
    """Its job was alive when Slurm was asked, and ends before scancel."""
    stage = Folder(tmp_path / "stage", plan("r1", study="tiny", chain=True))
    stage.start()
    stage.end("preempted")
    events = ledger.new_event(2, "claimed", executor="slurm"), ledger.new_event(2, "submitted", job_id="9")
    (tmp_path / "lines").write_text("".join(f"{event.model_dump_json()}\n" for event in events))
    move = (
        f"/bin/cp {stage.path}/attempt-1/result.json {submitted.path}/attempt-1; "
        f"/bin/mkdir {submitted.path}/attempt-2 && /bin/cat {tmp_path}/lines >>{submitted.path}/ledger.jsonl"
    )
    queued, alive = (
        "\n".join([line(f"7|RUNNING{code}n1", "tiny-1"), line(f"9|PENDING{code}", "tiny-1", now())])
        for code in ("|", "|0:0|")
    )
    says("squeue", queued)
    says("sacct", alive)
    says("scancel", also=move)
    cancel([ledger.state(submitted)])
    assert "scancel 9" in (tmp_path / "asked").read_text()
    assert ledger.state(RunFolder(submitted.path)).outcome == "cancelled"


@pytest.mark.fault
def test_a_run_whose_next_job_is_noted_while_slurm_is_asked_by_name_goes_on_in_it(
    root, submitted, says, tmp_path
):
    noted = ledger.new_event(1, "submitted", executor="slurm", job_id="9").model_dump_json()
    (tmp_path / "line").write_text(f"{noted}\n")
    move = f"/bin/cat {tmp_path}/line >>{submitted.path}/ledger.jsonl"
    says("sacct")
    says("squeue", also=f'case "$*" in *name=*) {move};; esac')
    (state,) = reconciled(root)
    assert (state.outcome, state.job_id) == (None, "9")


@pytest.fixture
def beside(root, says):
    """A run in job 7 that goes on, and one in job 8 that ran out of memory; and what sacct says of both."""
    folders = []
    for run_id, job_id in (("r1", "7"), ("r2", "8")):
        folder = Folder(root, plan(run_id, study="tiny"))
        folder.event("claimed", executor="slurm")
        folder.event("intent", submission=f"tiny-{job_id}", index=0, count=1, slot=0)
        folder.event("submitted", after=3, executor="slurm", job_id=job_id)
        folder.start()
        folders.append(folder.path)
    says("squeue", line("7|RUNNING|n1", "tiny-7"))
    ends = line("7|RUNNING|0:0|n1", "tiny-7"), line("8|OUT_OF_MEMORY|0:125|n1", "tiny-8")
    return *folders, "\n".join(ends)


@pytest.mark.fault
def test_a_run_that_cannot_be_read_keeps_no_other_from_its_end(root, beside, says):
    first, second, ends = beside
    says("sacct", ends)
    record = json.loads((first / "run.json").read_text()) | {"of_a_later_version": 1}
    (first / "run.json").write_text(json.dumps(record))
    reconciled(root)
    assert ledger.state(RunFolder(second)).outcome == "oom_host"


@pytest.mark.fault
def test_a_run_that_is_deleted_while_slurm_is_asked_keeps_no_other_from_its_end(root, beside, says):
    first, second, ends = beside
    says("sacct", ends, also=f"/bin/rm -rf {first}")
    reconciled(root)
    assert ledger.state(RunFolder(second)).outcome == "oom_host"


@pytest.mark.fault
def test_a_run_that_is_deleted_while_it_is_cancelled_is_none_that_was_told(beside, says):
    first, second, _ = beside
    states = [ledger.state(RunFolder(path)) for path in (first, second)]
    ends = line("7|COMPLETED|0:0|n1", "tiny-7"), line("8|RUNNING|0:0|n1", "tiny-8")
    says("squeue", line("8|RUNNING|n1", "tiny-8"))
    says("sacct", "\n".join(ends), also=f"/bin/rm -rf {first}")
    says("scancel")
    assert [state.job_id for state in cancel(states)] == ["8"]


@pytest.mark.fault
def test_a_process_whose_death_had_slurm_stop_rank_0_is_named(root, says):
    """Rank 0 knows only that it received SIGTERM."""
    shared = RunConfig(model=LLAMA, data={"path": "x"}, train={"batch_size": 2}, parallel={"shard": 2})
    folder = Folder(root, plan("r1", study="tiny", config=shared))
    folder.event("claimed", executor="slurm")
    folder.event("intent", submission="tiny-1", index=0, count=1, slot=0)
    folder.event("submitted", after=3, executor="slurm", job_id="7")
    folder.start()
    folder.end("cancelled", reason="received SIGTERM")
    (log := jobs_folder(root / "tiny") / "7_0_log.err").parent.mkdir()
    log.write_text("srun: error: n2: task 1: Killed\n")
    says("sacct", line("7|FAILED|9:0|n[1-2]", "tiny-1"))
    (state,) = reconciled(root)
    slurm = "Slurm: FAILED, exit code 9:0 on n[1-2]"
    assert (state.outcome, state.reason) == ("failed", f"rank 1 on n2: killed by SIGKILL ({slurm})")


@pytest.fixture
def orphan(root):
    """A run whose launcher died after it called sbatch, and before it knew the answer."""
    folder = Folder(root, plan("r1", study="tiny"))
    folder.event("claimed", executor="slurm", host=socket.gethostname(), pid=1, pid_started=0.5)
    folder.event("intent", submission="tiny-1", index=0, count=1, slot=0)
    return folder


@pytest.mark.fault
@pytest.mark.parametrize("starts", [True, False])
def test_an_array_that_slurm_accepts_while_it_is_asked_is_not_submitted_again(
    root, orphan, says, monkeypatch, starts
):
    """Its sbatch outlived the launcher, and ends as soon as squeue has answered."""
    (attempt := orphan.path / "attempt-1").mkdir(exist_ok=True)
    ends = root / "sbatch-ended"
    monkeypatch.setattr(reconcile, "_sbatch_runs", lambda _: not starts and not ends.exists())
    says("squeue", also=f": >{attempt / 'stdout.log' if starts else ends}")
    says("sacct")
    assert [state.in_flight for state in reconciled(root)] == [True]
    assert ledger.state(RunFolder(orphan.path)).attempt == 1
    says("squeue", f"{root.stat().st_uid}|7|tiny-1")
    says("sacct", line("7|RUNNING|0:0|n1", "tiny-1"))
    assert [state.job_id for state in reconciled(root)] == ["7"]


@pytest.mark.fault
def test_without_slurmdbd_a_run_ends_as_the_controller_says(root, submitted, says):
    says("sacct", "Slurm accounting storage is disabled", code=1)
    says("scontrol", "AccountingStorageType = accounting_storage/none\nJobId=7 JobName=tiny-1 ExitCode=9:0")
    says("squeue", line("7|FAILED|n1", "tiny-1"))
    (state,) = reconciled(root)
    assert (state.outcome, state.reason) == ("failed", "Slurm: FAILED, exit code 9:0 on n1")


@pytest.mark.fault
def test_without_slurmdbd_a_run_that_the_controller_has_forgotten_is_lost(root, submitted, says):
    says("sacct", "Slurm accounting storage is disabled", code=1)
    says("scontrol", "AccountingStorageType = accounting_storage/none")
    says("squeue")
    (state,) = reconciled(root)
    assert (state.outcome, state.reason) == (
        "lost",
        "Slurm no longer knows job 7, and the attempt left no result",
    )


@pytest.mark.fault
def test_a_run_whose_number_is_another_jobs_is_lost_and_that_job_goes_on(root, submitted, says, tmp_path):
    """Years later, the cluster has been set up again."""
    later = now() - timedelta(hours=1)
    says("sacct", line("7|RUNNING|0:0|n1", "theirs", later))
    says("squeue", line("7|RUNNING|n1", "theirs", later))
    says("scancel")
    assert cancel([ledger.state(submitted)]) == []
    assert "scancel" not in (tmp_path / "asked").read_text()
    (state,) = reconciled(root)
    assert state.reason == (
        "Slurm no longer knows job 7 (another job has that number now), and the attempt left no result"
    )


@pytest.mark.fault
@pytest.mark.parametrize("record", ["", "42|COMPLETED|0:0|n9|2020-11-21T12:00:00|theirs"])
def test_a_run_whose_number_was_noted_wrongly_is_found_by_its_arrays_name(root, submitted, says, record):
    """A site's wrapper of sbatch had said another job's number."""
    ledger.record_job(submitted, 1, "42")
    long_ago(submitted)
    says("sacct", record)
    by_name = f"case $* in *--name=tiny-1*) echo '{submitted.path.stat().st_uid}|43|tiny-1';; esac"
    says("squeue", also=by_name)
    (state,) = reconciled(root)
    assert (state.phase, state.job_id) == ("running", "43")


@pytest.fixture
def runaway(root, submitted, says):
    """Accounting says that job 7 goes on; the controller answers and does not know it."""
    says("sacct", line("7|RUNNING|0:0|n1", "tiny-1"))
    says("squeue")
    return submitted


@pytest.mark.fault
def test_a_run_that_goes_on_for_accounting_alone_is_lost_once_it_writes_nothing(root, runaway):
    (state,) = reconciled(root)
    assert state.phase == "running", "its job may have ended this moment"
    long_ago(runaway)
    (state,) = reconciled(root)
    assert (state.outcome, state.reason) == (
        "lost",
        "job 7 goes on in Slurm's accounting alone: its controller does not know it, and the attempt left "
        "no result",
    )


@pytest.mark.fault
def test_cancelling_a_run_that_only_accounting_knows_says_why_nothing_is_cancelled(runaway, caplog):
    assert cancel([ledger.state(runaway)]) == []
    assert "tiny/r1: Slurm's controller does not know its job 7" in caplog.text


@pytest.mark.fault
def test_a_colleagues_run_that_slurm_does_not_show_is_not_called_lost(root, runaway, monkeypatch):
    """Slurm can hide the jobs of other users (PrivateData)."""
    long_ago(runaway)
    monkeypatch.setattr(os, "getuid", lambda: runaway.path.stat().st_uid + 1)
    (state,) = reconciled(root)
    assert state.phase == "running"


def long_ago(folder):
    """What has been written of an attempt has not been touched for an hour."""
    time = now().timestamp() - 3600
    for path in [*(folder.path / "attempt-1").iterdir(), folder.path / "attempt-1"]:
        os.utime(path, (time, time))
    lines = (folder.path / "ledger.jsonl").read_text().splitlines()
    today = str(now().date())
    moved = [line.replace(today, str((now() - timedelta(days=1)).date())) for line in lines]
    (folder.path / "ledger.jsonl").write_text("\n".join(moved) + "\n")


def test_a_run_is_cancelled_whose_job_is_ours(submitted, says, tmp_path):
    says("sacct", line("7|RUNNING|0:0|n1", "tiny-1"))
    says("scancel")
    assert [state.brief.run_id for state in cancel([ledger.state(submitted)])] == ["r1"]
    assert "scancel 7" in (tmp_path / "asked").read_text()


@pytest.mark.parametrize(
    ("at_once", "command"), [(False, "scancel --signal=TERM 7\n"), (True, "scancel 7\n")]
)
def test_a_run_that_trains_is_asked_to_end_by_itself(submitted, says, tmp_path, at_once, command):
    restarted = Folder.__new__(Folder)
    restarted.run, restarted.path = submitted.run, submitted.path
    restarted.step(5)
    says("sacct", line("7|RUNNING|0:0|n1", "tiny-1"))
    says("scancel")
    assert len(cancel([ledger.state(submitted)], at_once)) == 1
    assert command in (tmp_path / "asked").read_text()


def test_a_run_that_is_cancelled_before_it_starts_is_never_lost(root, submitted, says):
    """Slurm keeps no record of such an element of an array, and `launch --wait` would start a lost run again."""
    (submitted.path / "attempt-1" / "manifest.json").unlink()
    says("sacct", line("7|PENDING|0:0|", "tiny-1"))
    says("scancel")
    cancel([ledger.state(submitted)])
    says("sacct")
    says("squeue")
    (state,) = reconciled(root)
    assert (state.outcome, state.reason) == ("cancelled", "cancelled before it started")


def test_the_attempt_of_a_requeued_job_is_known_by_the_name_of_the_first(root, submitted):
    restarted = Folder.__new__(Folder)
    restarted.run, restarted.path = submitted.run, submitted.path
    restarted.event("ended", outcome="preempted")
    restarted.event("claimed", attempt=2, after=60, executor="slurm")
    restarted.event("submitted", attempt=2, after=60, executor="slurm", job_id="7")
    restarted.start(2)
    job = job_of(ledger.state(submitted))
    assert (job.job_id, job.name, job.after, job.before) == (
        "7",
        "tiny-1",
        START,
        START + timedelta(seconds=3),
    )


def test_what_a_queued_run_waits_for_is_explained_and_shown_and_of_no_other(root, says, capsys, monkeypatch):
    says("squeue", "7 PartitionNodeLimit")
    queued, running = Folder(root, plan("r1")), Folder(root, plan("r2"))
    for folder in (queued, running):
        folder.event("claimed", executor="slurm")
        folder.event("submitted", executor="slurm", job_id="7")
    (queued.path / "attempt-1").mkdir()
    running.start()
    states = [ledger.state(RunFolder(folder.path)) for folder in (queued, running)]
    for table in (rows(states), map(explain, states)):
        assert [row["waits_for"] for row in table] == ["PartitionNodeLimit", None]
    monkeypatch.setenv("COLUMNS", "200")
    show(states)
    waits = [
        line.partition("waits: ")[2].strip()
        for line in capsys.readouterr().out.splitlines()
        if "r1" in line or "r2" in line
    ]
    assert waits == ["PartitionNodeLimit", ""]
    says("squeue", "slurm_load_jobs error: Invalid job id specified", code=1)  # the job is forgotten
    assert explain(states[0])["waits_for"] is None


@pytest.mark.parametrize("recorded", [False, True])
def test_the_log_of_an_attempt_without_a_result_has_what_its_job_said_on_each_node(root, recorded):
    folder = Folder(root, plan("r1", study="tiny"))
    folder.event("submitted", executor="slurm", job_id="7")
    folder.start()
    if recorded:
        folder.end("failed", reason="it says so")
    else:
        folder.event("ended", outcome=Outcome.FAILED, reason="rank 1 on n2: exited with exit code 127")
    (jobs := jobs_folder(root / "tiny")).mkdir()
    (jobs / "7_0_log.err").write_text("srun: error: n2: task 1: Exited with exit code 127\n")
    (jobs / "7_1_log.err").write_text("x" * 9000 + "\npython: not found\n")
    (jobs / "77_0_log.err").write_text("of another job\n")
    stdout = CliRunner().invoke(app, ["--root", str(root), "logs", "r1"]).stdout
    assert "of another job" not in stdout
    assert ("python: not found" in stdout, "task 1: Exited" in stdout) == (not recorded, not recorded)
    assert len(stdout) < 5000
