"""Local launches of one user run one after another on a machine, and nothing that dies blocks the next."""

import json
import logging
import os
import signal
import subprocess
import sys
import threading
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from runner.execute import launch, local
from runner.execute.queue import Launch, turn, waiting
from runner.execute.queue import holder as holder_of_the_queue
from runner.inputs.expansion import expand
from runner.inputs.profile import read_cluster
from runner.inputs.study import read_study
from runner.plan.plan import Plan, plan
from runner.state import process
from tests.analysis.fabricate import completed
from tests.conftest import PATIENCE_SECONDS, environment, until


@pytest.fixture(autouse=True)
def _own_queue(tmp_path, monkeypatch):
    monkeypatch.setenv("RUNNER_STATE", str(tmp_path / "state"))


@pytest.fixture
def second():
    """A launch in another thread that waits for its turn; its entry is whether it had waited."""
    answers = []

    def wait():
        with turn("second", Path("/b")) as waited:
            answers.append(waited)

    thread = threading.Thread(target=wait, daemon=True)
    yield lambda: thread.start() or answers
    thread.join(PATIENCE_SECONDS)


def waits(caplog):
    return [record.getMessage() for record in caplog.records if "waiting for" in record.getMessage()]


def test_a_second_launch_waits_for_the_first_and_says_so_once(second, caplog):
    caplog.set_level(logging.INFO, "runner")
    with turn("first", Path("/a")) as waited:
        answers = second()
        (message,) = until(lambda: waits(caplog), 0.01)
        assert message.startswith("waiting for first in /a (process ")
        (launch,) = waiting(Path("/b"), "second")
        assert (launch.study, launch.root, launch.pid) == ("second", Path("/b"), os.getpid())
        assert str(holder_of_the_queue()) == f"first in /a (process {os.getpid()})"
        assert waiting(Path("/b")) == [launch]
        assert waiting(Path("/a")) == waiting(Path("/b"), "first") == [], "of another root, or study"
        assert "Ctrl-C or `kill" in message
        assert "`runner --root /a status first` shows how far it is" in message
        assert "RUNNER_STATE=FOLDER" in message
        assert not answers
    until(lambda: answers, 0.01)
    assert (waited, answers, len(waits(caplog))) == (False, [True], 1)
    assert waiting(Path("/b")) == []


def test_a_launch_that_was_killed_while_it_waited_is_not_said_to_wait(tmp_path):
    with turn("first", Path("/a")):
        (file,) = (tmp_path / "state").glob("*.queue")
        dead = Launch(study="second", root=Path("/b"), pid=os.getpid(), pid_started=0.0)
        file.with_name(f"{file.name}.{os.getpid()}").write_text(dead.model_dump_json())
        assert waiting(Path("/b")) == [], "that process began at another time"


@pytest.fixture
def waiter(holder, runner, study, root, tmp_path):
    """A launch of the study tiny that waits for the holder."""
    state = {"RUNNER_STATE": str(tmp_path / "state")}
    launch = subprocess.Popen(
        [sys.executable, "-m", "runner", "--root", str(root), "launch", str(study())],
        env=environment(**state), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        until(lambda: waiting(root, "tiny") or launch.poll())
        assert launch.poll() is None
        yield launch
    finally:
        launch.kill()
        launch.wait()


def test_status_names_a_launch_that_waits(waiter, holder, runner, root, tmp_path):
    state = {"RUNNER_STATE": str(tmp_path / "state")}
    sentence = (
        f"tiny in {root} (process {waiter.pid}) waits for its turn, after dead in /a (process {holder.pid})"
    )
    stderr = runner("status", "tiny", rc=0, **state).stderr
    assert sentence in stderr, "although no run of it is written"
    assert "does not exist" not in stderr, "the launch makes the root once it has its turn"
    (row,) = json.loads(runner("status", "tiny", "--json", rc=0, **state).stdout)
    values = {key: value for key, value in row.items() if value is not None}
    assert values == {
        "study": "tiny", "factors": {}, "phase": "waiting", "waits_for": f"dead in /a (process {holder.pid})",
    }  # fmt: skip
    completed(root, "r1", study="done")
    assert list(json.loads(runner("status", "done", "--json", rc=0, **state).stdout)[0]) == list(row)
    waiter.kill()
    waiter.wait()
    assert "no study or run 'tiny'" in runner("status", "tiny", rc=2, **state).stderr


@pytest.mark.refused
@pytest.mark.parametrize("verb", ["status", "cancel", "report"])
def test_a_study_that_waits_is_suggested_for_a_mistyped_name(waiter, runner, root, tmp_path, verb):
    answer = runner(verb, "tniy", RUNNER_STATE=str(tmp_path / "state"), rc=2)
    assert "'tniy' under" in answer.stderr
    assert "(did you mean 'tiny'? valid" in answer.stderr
    assert waiter.poll() is None


def test_a_report_names_a_launch_that_waits(waiter, holder, runner, root, tmp_path):
    state = {"RUNNER_STATE": str(tmp_path / "state")}
    sentence = (
        f"tiny in {root} (process {waiter.pid}) waits for its turn, after dead in /a (process {holder.pid})\n"
    )
    assert runner("report", "tiny", rc=2, **state).stderr.endswith(f"no runs of study 'tiny' yet: {sentence}")
    completed(root, "r1", study="tiny")
    assert sentence in runner("report", "tiny", rc=0, **state).stderr


@pytest.mark.parametrize("suspended", [False, True])
def test_cancelling_a_study_ends_its_launch_that_waits(waiter, runner, root, tmp_path, suspended):
    if suspended:
        waiter.send_signal(signal.SIGSTOP)
        until(lambda: process.is_suspended(waiter.pid), 0.01)
    answer = runner("cancel", "tiny", RUNNER_STATE=str(tmp_path / "state"))
    assert answer.stderr == f"tiny in {root} (process {waiter.pid}) no longer waits for its turn\n"
    assert answer.returncode == 0
    assert waiter.wait(PATIENCE_SECONDS) == -signal.SIGTERM
    assert waiting(root) == []
    assert list((tmp_path / "state").glob("*.queue.*")) == [], "nothing stays of it"


def test_launches_in_different_slurm_jobs_do_not_wait_for_each_other(monkeypatch):
    with turn("on the machine", Path("/a")):
        for job in ("7", "8"):
            monkeypatch.setenv("SLURM_JOB_ID", job)
            with turn(f"in job {job}", Path("/a")) as waited:
                assert not waited


HOLD = """
from pathlib import Path
from runner.execute.queue import turn
with turn("dead", Path("/a")): print("held", flush=True); input()"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the queue."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=environment(RUNNER_STATE=str(tmp_path / "state")),
    ) as process:  # fmt: skip
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


@pytest.mark.fault
def test_a_killed_launch_leaves_the_machine_to_the_next(second, holder, caplog):
    caplog.set_level(logging.INFO, "runner")
    answers = second()
    until(lambda: waits(caplog), 0.01)
    assert not answers
    holder.kill()
    until(lambda: answers, 0.01)
    with turn("third", Path("/c")) as waited:
        assert not waited, "what the dead launch wrote blocks nobody"


@pytest.mark.fault
def test_a_launch_that_waits_for_a_suspended_one_says_how_to_go_on(second, holder, caplog):
    caplog.set_level(logging.INFO, "runner")
    holder.send_signal(signal.SIGSTOP)
    until(lambda: process.is_suspended(holder.pid), 0.01)
    second()
    (message,) = until(lambda: waits(caplog), 0.01)
    assert f"Process {holder.pid} is suspended: `kill -CONT {holder.pid}` continues it" in message


def test_a_launch_with_nothing_to_do_does_not_wait(study, root):
    parsed = read_study(study())
    empty = Plan(parsed, "full", read_cluster("local"), root, [])
    with turn("first", Path("/a")):
        launch.run_here(empty, local.Watcher())


def test_a_launch_that_waits_has_claimed_and_written_nothing(study, root, monkeypatch, caplog):
    """Else it would start what the launch before it has done by then."""
    caplog.set_level(logging.INFO, "runner")
    parsed, ran = read_study(study()), []
    monkeypatch.setattr(local, "run_queue", lambda tasks, *_: ran.append([task.number for task in tasks]))
    planned = plan(parsed, expand(parsed), "full", read_cluster("local"), root)
    thread = threading.Thread(target=launch.run_here, args=(planned, local.Watcher()), daemon=True)
    with turn("first", Path("/a")):
        thread.start()
        until(lambda: waits(caplog), 0.01)
        assert not list(root.rglob("run.json"))
    thread.join(PATIENCE_SECONDS)
    assert ran == [[1]]


@pytest.mark.parametrize(("days", "form"), [(0, "%H:%M"), (3, "%Y-%m-%d %H:%M")])
def test_a_launch_that_waits_says_since_when_the_other_runs(second, tmp_path, caplog, days, form):
    caplog.set_level(logging.INFO, "runner")
    start = datetime.now() - timedelta(days=days)
    with turn("first", Path("/a")):
        (file,) = (tmp_path / "state").glob("*.queue")
        os.utime(file, (start.timestamp(), start.timestamp()))
        answers = second()
        until(lambda: waits(caplog), 0.01)
        assert (
            f"first in /a (process {os.getpid()}), which began at {start:{form}}, to finish"
            in waits(caplog)[0]
        )
    until(lambda: answers, 0.01)
    assert "second in /b" in caplog.messages[-1]
    assert caplog.messages[-1].endswith("no longer waits: it is its turn")


@pytest.mark.fault
def test_a_queue_that_cannot_be_used_is_said_and_stops_nobody(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").touch()
    monkeypatch.setenv("RUNNER_STATE", str(tmp_path / "file"))
    with turn("first", Path("/a")) as waited:
        assert not waited
    assert "set RUNNER_STATE to a folder of your own" in caplog.text


@pytest.mark.fault
def test_a_user_without_a_home_is_told_what_to_set(monkeypatch, caplog):
    monkeypatch.delenv("RUNNER_STATE")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", _no_home)
    with turn("first", Path("/a")) as waited:
        assert not waited
    assert "this user has no home folder; set RUNNER_STATE to a folder of your own" in caplog.text


def _no_home():
    raise RuntimeError("Could not determine home directory.")


def test_no_test_uses_the_queue_of_the_person_who_runs_it():
    queue = Path(environment()["RUNNER_STATE"])
    assert queue.is_dir()
    assert not queue.is_relative_to(Path.home() / ".local")
