"""Real runs in real processes on this machine: whatever is killed, the outcomes are true and nothing is lost."""

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest

from model.record.errors import UserError
from model.record.folder import RunFolder
from runner.execute import local
from runner.execute.child import Child
from runner.execute.local import _reason
from runner.inputs.profile import read_cluster
from runner.state import ledger
from runner.state.attempts import JobShape, NextAttempt
from runner.state.process import is_running
from tests.analysis.fabricate import Folder, plan
from tests.conftest import PATIENCE_SECONDS, environment, until


def outcomes(runner, study=""):
    rows = json.loads(runner("status", *([study] if study else []), "--json", rc=0).stdout)
    return [(row["outcome"] or row["phase"], row["attempt"]) for row in rows]


@pytest.fixture
def start(background, root, tmp_path):
    """Starts the command line in the background."""
    return lambda *arguments, **env: background("runner", "--root", root, *arguments, cwd=tmp_path, **env)


def running_job(root):
    """The process of the run that is training now."""

    def find():
        for manifest in root.glob("*/*/attempt-*/manifest.json"):
            if not (manifest.parent / "result.json").exists() and (manifest.parent / "steps.jsonl").exists():
                record = json.loads(manifest.read_text())
                if is_running(record["pid"], record["pid_started"]):  # not one of an attempt that was killed
                    return psutil.Process(record["pid"])
        return None

    return until(find)


LONG = "order: as written\nmatrix: {train.steps: [100000, 5, 6]}\n"


def test_a_launch_trains_every_run_and_a_second_one_has_nothing_to_do(runner, study, root):
    path = study("matrix: {seed: [0, 1]}\n")
    first = runner("launch", path, rc=0)
    assert "2 to do" in first.stderr
    assert "0 to do" in runner("launch", path, rc=0).stderr
    assert outcomes(runner, path) == [("completed", 1)] * 2
    steps = [
        json.loads(line) for line in next(root.glob("*/*/attempt-1/steps.jsonl")).read_text().splitlines()
    ]
    assert [step["step"] for step in steps] == [1, 2, 4, 6]
    assert [step["steps"] for step in steps] == [1, 1, 2, 2]
    assert all(step["tokens"] == 64 * step["steps"] for step in steps)
    assert len(list(root.glob("*/[!.]*/**/*"))) <= 2 * 10, "at most about ten files a run"


def test_a_run_folder_that_is_removed_during_a_launch_is_named_and_the_others_run(study, root, start):
    launch = start("launch", study("order: as written\nmatrix: {train.steps: [100000, 5, 6]}\n"))
    going = running_job(root)
    folders = {
        json.loads(path.read_text())["config"]["train"]["steps"]: path.parent
        for path in root.glob("*/*/run.json")
    }
    shutil.rmtree(folders[5])
    while folders[100000].exists():  # the run may write in between
        shutil.rmtree(folders[100000], ignore_errors=True)
    _, stderr = launch.communicate(timeout=PATIENCE_SECONDS)
    assert launch.returncode == 1
    assert not going.is_running()
    for steps in (5, 100000):
        assert f"its folder {folders[steps]} was removed: launch the study again to plan it anew" in stderr
    assert "the folders of 2 runs were removed during the launch" in stderr
    assert (folders[6] / "attempt-1" / "result.json").exists()


def test_an_outcome_that_is_not_the_expected_one_gives_exit_code_1(runner, study):
    runner("launch", study("order: as written\nrules: []\nmatrix: {attention: [custom, auto]}\n"), rc=1)
    assert outcomes(runner) == [("unsupported", 1), ("completed", 1)]


def test_fail_fast_starts_nothing_after_an_end_that_was_not_expected(runner, study, tmp_path):
    (profile := tmp_path / "p.yaml").write_text("executor: local\nenv: {PYTHONHOME: /nowhere}\n")
    runner("launch", study("matrix: {seed: [0, 1]}\n"), "--profile", profile, "--fail-fast", rc=1)
    assert outcomes(runner) == [("failed", 1), ("planned", 0)]


@pytest.mark.parametrize("expected", ["unsupported", "[completed, unsupported]"])
def test_an_expected_outcome_is_a_result_and_is_not_run_again(runner, study, expected):
    path = study(
        f"matrix: {{attention: [custom]}}\nrules: [{{where: {{attention: custom}}, expect: {expected}}}]\n"
    )
    runner("launch", path, rc=0)
    assert "0 to do" in runner("launch", path, rc=0).stderr


@pytest.mark.trains
@pytest.mark.fault
def test_a_run_that_outgrows_the_memory_limit_ends_oom_host_with_the_bytes_asked_for(runner, study, tmp_path):
    (profile := tmp_path / "small.yaml").write_text("executor: local\nmemory: 2GiB\n")
    path = study("matrix: {attention: [math], train.sequence_length: [16384]}\n")
    runner("launch", path, "--profile", profile, rc=1)
    (result,) = [json.loads(file.read_text()) for file in tmp_path.glob("runs/tiny/*/attempt-1/result.json")]
    assert result["outcome"] == "oom_host"
    assert result["requested_bytes"] >= 16384**2 * 4
    assert "of 2.0 GiB in use (`memory` of profile small)" in result["reason"]
    assert re.search(r"requested .* needs about \d+\.\d GiB in all$", result["reason"])


@pytest.mark.trains
@pytest.mark.fault
def test_a_run_that_has_more_in_use_than_its_limit_ends_oom_host_whatever_it_does(runner, study):
    """Here it imports torch, which allocates nothing that fails: the kernel ends it, or it ends itself."""
    path = study(
        "rules: [{where: {attention: auto}, resources: {memory: 64MiB}}]\nmatrix: {attention: [auto]}\n"
    )
    runner("launch", path, rc=1)
    runner("collect", rc=0)
    (run,) = json.loads(runner("sql", "select outcome, reason from runs", "--format", "json", rc=0).stdout)
    assert run["outcome"] == "oom_host"
    assert "of 64.0 MiB in use (`memory` in a rule of the study)" in run["reason"]


@pytest.mark.trains
@pytest.mark.fault
def test_a_loss_that_is_not_finite_ends_diverged(runner, study):
    runner("launch", study("matrix: {train.learning_rate: [1e30]}\n"), rc=1)
    assert outcomes(runner) == [("diverged", 1)]


@pytest.mark.fault
def test_a_run_past_the_time_limit_ends_timeout(runner, study, tmp_path):
    (profile := tmp_path / "short.yaml").write_text("executor: local\ntime_limit: 0:00:05\n")
    runner("launch", study("matrix: {train.steps: [1000000]}\n"), "--profile", profile, rc=1)
    assert outcomes(runner) == [("timeout", 1)]


@pytest.mark.fault
@pytest.mark.fault
def test_what_is_no_step_record_ends_no_launch(root):
    """Whoever wrote it; what else can be read is shown, and collect says what cannot."""
    folder = Folder(root, plan("r1"))
    folder.start()
    task = NextAttempt(RunFolder(folder.path), 1, "r1", 9, JobShape(None, None, None))
    child, path = Child(task, None, (), 0.0, 0), folder.path / "attempt-1" / "steps.jsonl"
    folder.step(1)
    with path.open("ab") as file:
        file.write(b'{"step": 2, "loss": NaN}\n\xff\n\n')
    folder.step(3)
    assert [record.step for record in child.new_steps()] == [1, 3]
    path.unlink()
    path.mkdir()
    assert child.new_steps() == []


def test_a_killed_run_says_so_and_the_others_and_the_database_stay_right(runner, study, start, root):
    launch = start("launch", study(LONG))
    running_job(root).kill()
    launch.communicate(timeout=PATIENCE_SECONDS)
    assert launch.returncode == 1
    assert outcomes(runner) == [("failed", 1), ("completed", 1), ("completed", 1)]
    runner("collect", rc=0)
    rows = json.loads(
        runner(
            "sql",
            "select outcome, reason from runs order by steps desc nulls first",
            "--format",
            "json",
            rc=0,
        ).stdout
    )
    assert sorted(row["outcome"] for row in rows) == ["completed", "completed", "failed"]
    assert "killed by SIGKILL" in [row["reason"] for row in rows]


@pytest.mark.fault
def test_a_killed_launcher_takes_its_run_along_and_a_relaunch_does_what_is_left(
    runner, study, start, root, tmp_path
):
    path = study("order: as written\nmatrix: {train.steps: [5, 100000]}\n")
    launch = subprocess.Popen(
        [sys.executable, "-P", "-m", "runner", "--root", str(root), "launch", str(path)],
        cwd=tmp_path, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    until(lambda: list(root.glob("*/*/attempt-1/result.json")))
    job = running_job(root)
    launch.kill()
    launch.wait()
    until(lambda: not psutil.pid_exists(job.pid) or job.status() == psutil.STATUS_ZOMBIE)
    assert outcomes(runner) == [("completed", 1), ("lost", 1)]
    relaunch = start("launch", path)
    until(lambda: "1 to do" in relaunch.stderr)
    running_job(root)
    assert outcomes(runner) == [("completed", 1), ("running", 2)]


@pytest.mark.fault
def test_a_terminal_that_is_closed_stops_the_run_with_a_checkpoint_and_notes_it(
    runner, study, root, tmp_path
):
    controller, terminal = os.openpty()
    launch = subprocess.Popen(
        ["setsid", "--ctty", sys.executable, "-P", "-m", "runner", "--root", str(root), "launch", str(study(LONG))],
        cwd=tmp_path, env=environment(), stdin=terminal, stdout=terminal, stderr=terminal,
    )  # fmt: skip
    os.close(terminal)
    running_job(root)
    os.close(controller)  # the kernel sends SIGHUP, and nothing can be shown any more
    launch.wait(timeout=PATIENCE_SECONDS)
    assert outcomes(runner) == [("cancelled", 1), ("planned", 0), ("planned", 0)]
    (reason,) = [row["reason"] for row in json.loads(runner("status", "--json").stdout) if row["reason"]]
    assert reason.startswith("the launcher received SIGHUP; a checkpoint was saved at step ")
    assert list(root.glob("tiny/*/attempt-1/checkpoint"))


@pytest.mark.fault
def test_a_stopped_run_goes_on_from_its_checkpoint_and_records_each_step_once(runner, study, start, root):
    path = study("matrix: {train.steps: [1000]}\n")
    launch = start("launch", path, "--set", "train.log_every=50", PACE_SECONDS="1")
    running_job(root)
    launch.send_signal(signal.SIGTERM)
    launch.communicate(timeout=PATIENCE_SECONDS)
    assert outcomes(runner) == [("cancelled", 1)]
    runner("launch", path, "--set", "train.log_every=50", rc=0)
    assert outcomes(runner) == [("completed", 2)]
    records = [
        json.loads(line)
        for number in (1, 2)
        for line in next(root.glob(f"*/*/attempt-{number}/steps.jsonl")).read_text().splitlines()
    ]
    steps = [step for r in records for step in range(r["step"] - r["steps"] + 1, r["step"] + 1)]
    assert steps == list(range(1, 1001))


def test_retry_says_which_settings_of_another_profile_it_does_not_take(runner, study, tmp_path):
    """A run that did not fit into memory would fail again, without a word."""
    runner("launch", study("matrix: {attention: [custom, auto]}\n"), rc=1)
    assert "that they were planned with" not in runner("retry", "tiny", rc=1).stderr
    (other := tmp_path / "other.yaml").write_text("executor: local\nmemory: 7GiB\ntime_limit: 1:23:00\n")
    stderr = runner("retry", "tiny", "--profile", other, rc=1).stderr
    assert "runs keep the memory, time_limit that they were planned with; `runner launch`" in stderr


def test_retry_starts_what_ended_otherwise_than_expected_and_explain_tells_the_story(runner, study):
    path = study("order: as written\nmatrix: {attention: [custom, auto]}\n")
    runner("launch", path, rc=1)
    assert "nothing to restart" in runner("retry", path, "--outcome", "diverged", rc=0).stderr
    assert "no such outcome" in runner("retry", path, "--outcome", "bad", rc=2).stderr
    runner("retry", "tiny", rc=1)
    assert outcomes(runner) == [("unsupported", 2), ("completed", 1)]
    run_id = json.loads(runner("status", "--json").stdout)[0]["run_id"]
    explanation = json.loads(runner("explain", run_id, "--json", rc=0).stdout)
    assert [attempt["outcome"] for attempt in explanation["attempts"]] == ["unsupported"] * 2
    assert explanation["why"][0].endswith("tiny.yaml:8:22")
    assert "needs an NVIDIA GPU" in runner("explain", run_id, rc=0).stdout


def test_a_rehearsal_finds_what_would_fail_and_leaves_the_study_alone(runner, study, root):
    path = study("order: as written\nmatrix: {attention: [auto, custom]}\n")
    rehearsal = runner("launch", path, "--rehearse", rc=1)
    assert "unsupported" in rehearsal.stdout
    assert not (root / "tiny").exists() or not list((root / "tiny").glob("*/run.json"))
    (steps,) = root.glob("tiny.rehearsal/*/attempt-1/steps.jsonl")
    assert [json.loads(line)["step"] for line in steps.read_text().splitlines()] == [1, 2]
    runner("launch", path, "--rehearse", rc=1)
    assert len(list(root.glob("tiny.rehearsal/*/attempt-2"))) == 2, "a rehearsal always runs"


def test_cancel_stops_the_run_in_flight(runner, study, start, root):
    launch = start("launch", study(LONG))
    job = running_job(root)
    run_id = json.loads(runner("status", "--json").stdout)[0]["run_id"]
    assert "cancelling 1 run in flight" in runner("cancel", run_id[:6], rc=0).stderr
    until(lambda: not psutil.pid_exists(job.pid) or job.status() == psutil.STATUS_ZOMBIE)
    launch.communicate(timeout=PATIENCE_SECONDS)
    assert outcomes(runner) == [("cancelled", 1), ("completed", 1), ("completed", 1)]


@pytest.mark.fault
def test_two_launches_at_once_run_nothing_twice(runner, study, start, root, tmp_path):
    """Each in a queue of its own, as on two machines that share a root."""
    path = study("matrix: {seed: [0, 1, 2, 3]}\n")
    launches = [start("launch", path, RUNNER_STATE=str(tmp_path / name)) for name in ("one", "two")]
    for launch in launches:
        launch.communicate(timeout=PATIENCE_SECONDS)
    assert outcomes(runner) == [("completed", 1)] * 4
    assert len(list(root.glob("*/*/attempt-*"))) == 4


def test_a_detached_launch_returns_at_once_and_goes_on(runner, study):
    runner("launch", study("matrix: {seed: [0]}\n"), "--detach", rc=0)
    until(lambda: outcomes(runner) == [("completed", 1)])


@pytest.mark.refused
def test_a_changed_data_file_is_not_mixed_with_earlier_results(runner, study, tmp_path):
    from runner.commands.data import write_corpus

    path = study("matrix: {seed: [0]}\n")
    runner("launch", path, rc=0)
    (tmp_path / "text.parquet").unlink()
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a.txt").write_text("other text " * 50)
    write_corpus(tmp_path / "folder", tmp_path / "text.parquet")
    assert "has changed since run" in runner("launch", path, rc=2).stderr


def test_the_environment_of_the_profile_reaches_the_run(runner, study, tmp_path):
    (profile := tmp_path / "p.yaml").write_text("executor: local\nenv: {PYTHONVERBOSE: '1'}\n")
    runner("launch", study(), "--profile", profile, rc=0)
    assert "import 'model.record.folder'" in next(tmp_path.glob("runs/*/*/attempt-1/stderr.log")).read_text()


def test_logs_show_what_a_failed_run_printed(runner, study, tmp_path):
    path = study("matrix: {seed: [0]}\n")
    runner("launch", path, "--dry-run", rc=0)
    (profile := tmp_path / "p.yaml").write_text(
        "executor: local\nenv: {PYTHONPATH: /nowhere, PYTHONHOME: /nowhere}\n"
    )
    runner("launch", path, "--profile", profile, rc=1)
    run_id = json.loads(runner("status", "--json").stdout)[0]["run_id"]
    logs = runner("logs", run_id, rc=0)
    assert "No module named" in logs.stdout
    assert "exited with code" in logs.stderr


@pytest.mark.refused
@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_root_that_cannot_be_written_is_refused(runner, study, tmp_path, root):
    root.mkdir(mode=0o500)
    path, reason = study(), f"{root}: Permission denied; choose another place with --root"
    assert f"a launch would be refused: {reason}" in runner("launch", path, "--dry-run", rc=0).stderr
    assert runner("launch", path, rc=2).stderr.endswith(f"{reason}\n")


# Stands in for a run: says that it is there, and ends when it is asked to, or not at all.
JOB = """#!/bin/sh
trap "$TRAP" TERM
echo > "$PWD/ready"
while :; do sleep 0.05; done
"""


class Gone(local.Watcher):
    """A terminal that is gone: nothing can be shown. Sends the signals as soon as the runs are there."""

    def __init__(self, tasks, signals):
        self.tasks, self.signals = tasks, list(signals)

    def started(self, task):
        if task is self.tasks[-1]:
            threading.Thread(target=self.send).start()

    def send(self):
        until(lambda: all((task.folder.attempt(1).path / "ready").exists() for task in self.tasks), 0.02)
        for number in self.signals:
            os.kill(os.getpid(), number)
            time.sleep(0.3)

    def ended(self, task, outcome, reason):
        raise OSError("the terminal is gone")


def interrupted(root, tmp_path, trap, *signals):
    """How two runs ended whose launcher received signals."""
    (job := tmp_path / "job").write_text(JOB)
    job.chmod(0o755)
    (path := tmp_path / "p.yaml").write_text(
        f"executor: local\nmax_parallel: 2\npython: {job}\nenv: {{TRAP: '{trap}'}}\n"
    )
    folders = [RunFolder(Folder(root, plan(name)).path) for name in ("r1", "r2")]
    tasks = [NextAttempt(folder, 1, folder.path.name, 1, JobShape(None, None, None)) for folder in folders]
    with pytest.raises(KeyboardInterrupt):
        local.run_queue(tasks, read_cluster(str(path)), Gone(tasks, signals))
    return [ledger.state(folder) for folder in folders]


@pytest.mark.fault
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_launcher_that_is_asked_to_end_records_each_of_its_runs(root, tmp_path, number):
    handler = signal.getsignal(number)
    states = interrupted(root, tmp_path, "exit 0", number)
    assert [state.outcome for state in states] == ["cancelled"] * 2
    assert {state.reason for state in states} == {f"the launcher received {number.name}"}
    assert signal.getsignal(number) is handler


@pytest.mark.fault
def test_a_second_signal_kills_runs_that_do_not_end(root, tmp_path):
    states = interrupted(root, tmp_path, "", signal.SIGTERM, signal.SIGINT)
    assert [state.outcome for state in states] == ["cancelled"] * 2


@pytest.mark.fault
def test_a_launcher_under_nohup_does_not_hear_that_its_terminal_is_closed(root, tmp_path, monkeypatch):
    handler = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        states = interrupted(root, tmp_path, "exit 0", signal.SIGHUP, signal.SIGTERM)
    finally:
        signal.signal(signal.SIGHUP, handler)
    assert {state.reason for state in states} == {"the launcher received SIGTERM"}


@pytest.mark.fault
@pytest.mark.parametrize("name", ["", "run.json"])
def test_a_run_that_others_can_change_is_not_started(root, tmp_path, name):
    """Its record names the code that runs; an earlier version let the umask decide who can write it."""
    run = RunFolder(Folder(root, plan("r1")).path)
    (run.path / name).chmod(0o775)
    (path := tmp_path / "p.yaml").write_text("executor: local\npython: /bin/true\n")
    task = NextAttempt(run, 1, "r1", 1, JobShape(None, None, None))
    with pytest.raises(UserError, match="is writable by others, who could run code as you: chmod -R go-w"):
        local.run_queue([task], read_cluster(str(path)), local.Watcher())
    assert run.numbers() == []


@pytest.mark.fault
def test_output_that_fails_because_the_terminal_is_closed_is_not_why_the_runs_were_stopped():
    error = OSError(errno.EIO, "Input/output error")
    assert _reason(error, [signal.SIGHUP]) == "the launcher received SIGHUP"
    assert "Input/output error" in _reason(error, [])
    assert _reason(KeyboardInterrupt(), []) == "the launcher was interrupted"
    closed = BrokenPipeError(errno.EPIPE, "Broken pipe")  # `runner launch ... | head`
    assert _reason(closed, []) == "nobody reads the launcher's output any more"
