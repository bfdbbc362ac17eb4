"""What `cancel` says of what it could and could not end."""

import os
import signal
import subprocess

import pytest
from typer.testing import CliRunner

from runner.cli.app import app
from runner.execute import queue
from runner.state import process
from tests.analysis.fabricate import Folder, completed, plan
from tests.conftest import until


@pytest.mark.parametrize(("target", "hint"), [("tiny", True), ("tiny/r1", False)])
def test_a_cancelled_study_names_the_local_launch_that_starts_the_next_run(
    tmp_path, monkeypatch, target, hint
):
    monkeypatch.setattr(process, "terminate", lambda manifest: True)
    run = Folder(tmp_path, plan("r1", study="tiny"))
    run.start(**process.own_identity())
    run.event("claimed", executor="local", **process.own_identity())
    Folder(tmp_path, plan("r2", study="tiny"))
    answer = CliRunner().invoke(app, ["--root", str(tmp_path), "cancel", target])
    assert "in flight, of " in answer.stderr
    assert (f"`kill {process.own_identity()['pid']}` ends it" in answer.stderr) == hint


@pytest.mark.parametrize("target", ["tiny", "tiny/r1"])
def test_of_what_has_ended_nothing_is_said_to_be_cancelled(tmp_path, target):
    completed(tmp_path, "r1", study="tiny")
    answer = CliRunner().invoke(app, ["--root", str(tmp_path), "cancel", target])
    assert (answer.exit_code, answer.stderr) == (0, f"nothing of {target} is in flight\n")


def test_between_two_runs_the_launch_is_named_that_starts_the_next_one(tmp_path, monkeypatch):
    monkeypatch.setenv("RUNNER_STATE", str(tmp_path / "state"))
    completed(tmp_path / "runs", "r1", study="tiny")
    with queue.turn("tiny", tmp_path / "runs"):
        answer = CliRunner().invoke(app, ["--root", str(tmp_path / "runs"), "cancel", "tiny"])
    assert answer.exit_code == 1
    assert answer.stderr.startswith("no run is in flight just now, but tiny in ")
    assert answer.stderr.endswith(f"still starts the remaining runs: `kill {os.getpid()}` ends it\n")
    with queue.turn("other", tmp_path / "runs"):
        answer = CliRunner().invoke(app, ["--root", str(tmp_path / "runs"), "cancel", "tiny"])
    assert (answer.exit_code, answer.stderr) == (0, "nothing of tiny is in flight\n")


@pytest.mark.parametrize("text", [None, "oops: 1\n"])
def test_a_file_that_was_broken_since_its_launch_still_names_its_study(tmp_path, text):
    completed(tmp_path, "r1", study="tiny")
    file = tmp_path / "tiny.yaml"
    if text:
        file.write_text(text)
    answer = CliRunner().invoke(app, ["--root", str(tmp_path), "cancel", str(file)])
    assert (answer.exit_code, answer.stderr) == (0, "nothing of tiny is in flight\n")


@pytest.mark.parametrize("suspended", [False, True])
def test_a_local_launch_that_is_suspended_is_said_to_hear_nothing_until_it_is_continued(
    tmp_path, monkeypatch, suspended
):
    monkeypatch.setattr(process, "terminate", lambda manifest: True)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as launch:
        itself = process.own_identity() | {"pid": launch.pid, "pid_started": process.started(launch.pid)}
        if suspended:
            launch.send_signal(signal.SIGSTOP)
            until(lambda: process.is_suspended(launch.pid), 0.01)
        for name in ("r1", "r2"):
            run = Folder(tmp_path, plan(name, study="tiny"))
            run.start(**process.own_identity())
            run.event("claimed", executor="local", **itself)
        answer = CliRunner().invoke(app, ["--root", str(tmp_path), "cancel", "tiny"])
        launch.kill()
    assert f"`kill {launch.pid}` ends it" in answer.stderr
    assert (f"`kill -CONT {launch.pid}` continues it" in answer.stderr) == suspended
