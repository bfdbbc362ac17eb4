"""The clock is set back or ahead while launchers and jobs run: nothing relies on its order."""

import json
import os
import signal
import subprocess
import sys
import time
from datetime import timedelta

import pytest

from model.record.folder import RunFolder
from model.record.records import LedgerEvent, now
from runner.execute import reconcile
from runner.job import stop
from runner.job.slurm import job_end
from runner.state import ledger, process
from tests.analysis.fabricate import Folder, plan
from tests.conftest import PATIENCE_SECONDS, environment, until
from tests.faults.test_files import SITE
from tests.slurm.test_cluster import SANDBOX

HOUR = 3600


class Clock:
    """The clock that processes with `env` see: so many seconds off, and it can be set while they run."""

    def __init__(self, file):
        self.file = file
        self.env = {"CLOCK_FILE": str(file), "PYTHONPATH": str(SITE)}
        self.set(0)

    def set(self, seconds):
        aside = self.file.with_suffix(".new")
        aside.write_text(f"{seconds:+d}\n")
        aside.replace(self.file)


@pytest.fixture
def clock(tmp_path):
    return Clock(tmp_path / "clock")


def sql(runner, query):
    runner("collect", rc=0)
    return json.loads(runner("sql", query, "--format", "json", rc=0).stdout)


def test_a_clock_that_is_set_back_an_hour_while_a_run_trains_changes_nothing(
    runner, study, root, tmp_path, clock
):
    (profile := tmp_path / "here.yaml").write_text('executor: local\ncheckpoint_every: "0:00:01"\n')
    path = study("matrix: {train.steps: [6000]}\n")
    launch = subprocess.Popen(
        [sys.executable, "-P", "-m", "runner", "--root", str(root), "launch", str(path), "-p", str(profile),
         "--set", "train.log_every=100"],
        cwd=tmp_path, env=environment(**clock.env), stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    until(lambda: list(root.glob("tiny/*/attempt-1/steps.jsonl")))
    clock.set(-HOUR)
    checkpoints = set(root.glob("tiny/*/attempt-1/checkpoint/state-*"))
    until(
        lambda: (
            set(root.glob("tiny/*/attempt-1/checkpoint/state-*")) - checkpoints or launch.poll() is not None
        )
    )
    assert launch.poll() is None, "checkpoints go on"
    assert "0 to do" in runner("launch", path, "--set", "train.log_every=100").stderr, (
        "the launch still lives"
    )
    _, stderr = launch.communicate(timeout=PATIENCE_SECONDS)
    assert launch.returncode == 0, stderr
    run = RunFolder(next(root.glob("tiny/[0-9a-f]*")))
    result = run.attempt(1).result
    assert result.ended_at < result.started_at, "the clock was set back"
    assert result.wall_seconds > 0
    (row,) = sql(runner, "SELECT wall_seconds > 0 AS took, gpu_hours >= 0 AS cost, outcome, steps FROM runs")
    assert row == {"took": True, "cost": True, "outcome": "completed", "steps": 6000}
    assert sql(runner, "SELECT count(*) AS n FROM steps WHERE step_seconds <= 0") == [{"n": 0}]


def test_a_run_that_was_killed_after_the_clock_was_set_back_took_no_negative_time(
    runner, study, root, tmp_path, clock
):
    """Its launcher's word is all there is of its end."""
    path = study("matrix: {train.steps: [1000000]}\n")
    launch = subprocess.Popen(
        [sys.executable, "-P", "-m", "runner", "--root", str(root), "launch", str(path)],
        cwd=tmp_path, env=environment(**clock.env), stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    (steps,) = until(lambda: list(root.glob("tiny/*/attempt-1/steps.jsonl")))
    clock.set(-HOUR)
    os.kill(json.loads((steps.parent / "manifest.json").read_text())["pid"], signal.SIGKILL)
    assert launch.wait(timeout=PATIENCE_SECONDS) == 1
    events = [event.event for event in RunFolder(steps.parent.parent).ledger]
    assert events == ["claimed", "ended"]
    query = "SELECT wall_seconds >= 0 AS took, gpu_hours >= 0 AS cost, outcome FROM runs"
    assert sql(runner, query) == [{"took": True, "cost": True, "outcome": "failed"}]


@pytest.mark.slurm
@pytest.mark.parametrize("seconds", [HOUR, -HOUR], ids=["ahead", "behind"])
def test_a_launcher_whose_clock_is_an_hour_off_loses_no_job_and_starts_none_twice(
    slurm, study, root, rows, clock, seconds, tmp_path
):
    """Behind: its `submitted` is older than ACCOUNTING_DELAY at once. Ahead: it lies in the future.

    The nodes' clocks are right: munge refuses a node whose clock is off by more than five minutes.
    """
    (tmp_path / "right").write_text("0")
    (profile := tmp_path / "queue.yaml").write_text(
        SANDBOX.read_text().replace("env: {", f"env: {{CLOCK_FILE: '{tmp_path / 'right'}', ")
    )
    path = study("matrix: {seed: [0, 1]}\n")
    clock.set(seconds)
    slurm("launch", path, "--profile", profile, rc=0, **clock.env)
    assert "0 submitted" in slurm("launch", path, "--profile", profile, rc=0).stderr
    until(lambda: all(row["phase"] == "ended" for row in rows()))
    assert [(row["outcome"], row["attempt"]) for row in rows()] == [("completed", 1)] * 2


def test_a_claim_of_another_machine_whose_clock_is_ahead_is_left_alone(root):
    folder = Folder(root, plan("r1"))
    (folder.path / "attempt-1").mkdir()
    claim = LedgerEvent(
        time=now() + timedelta(hours=1), event="claimed", attempt=1, host="elsewhere", pid=1, pid_started=1.0
    )
    (folder.path / "ledger.jsonl").write_text(claim.model_dump_json() + "\n")
    assert not reconcile.orphaned(ledger.state(RunFolder(folder.path)))


def test_a_process_is_told_from_another_by_its_start_since_boot_which_no_clock_moves(monkeypatch):
    """The kernel reckons starts since 1970 from boot, so that they move when the clock is set."""
    start = process.started(os.getpid())
    monkeypatch.setattr("psutil._pslinux.boot_time", lambda: 0.0)
    assert process.is_running(os.getpid(), start)
    assert not process.is_running(os.getpid(), start + 1)
    with subprocess.Popen(["true"]) as child:
        until = time.monotonic() + PATIENCE_SECONDS
        started = process.started(child.pid)
        while process.is_running(child.pid, started) and time.monotonic() < until:
            time.sleep(0.05)
        assert not process.is_running(child.pid, started), "a zombie does not run"


def test_the_time_limit_is_kept_to_when_the_clock_is_set_back(monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(time.time() + 100))
    stopping = stop.Stop(stop.deadline(job_end(), 10))
    start = time.monotonic()
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert not stopping.requested()
    monkeypatch.setattr(time, "monotonic", lambda: start + 91)
    assert stopping.requested()
    assert stopping.cause == "deadline"
