"""Slurm's answers are read as Slurm means them."""

import os

import pytest

from runner.execute.slurm import client
from runner.state import slurm
from runner.state.slurm import SchedulerError


@pytest.fixture
def says(tmp_path, monkeypatch):
    """Puts one of Slurm's commands on PATH that prints a text."""

    def answer(command, text, code=0):
        (tmp_path / command).write_text(f"#!/bin/sh\ncat <<'X'\n{text}\nX\nexit {code}\n")
        (tmp_path / command).chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    return answer


@pytest.fixture
def sacct(says):
    """Accounting's answer, beside a queue that is empty."""
    says("squeue", "")
    return lambda text, code=0: says("sacct", text, code)


def test_elements_that_never_started_are_shown_as_a_range(sacct):
    sacct("7_0|COMPLETED|0:0|n1\n7_[1-2,5%4]|CANCELLED by 0|0:0|None assigned\n7_3|RUNNING|0:0|n2")
    answer = client.poll(["7_0", "7_1", "7_2", "7_3", "7_5", "7_9"])
    assert answer.alive == {"7_3"}
    found = answer.endings
    assert {job: ending.outcome.value for job, ending in found.items()} == {
        "7_0": "lost", "7_1": "cancelled", "7_2": "cancelled", "7_5": "cancelled",
    }  # fmt: skip


def test_a_step_out_of_memory_is_why_its_job_failed(sacct):
    sacct("9|FAILED|1:0|n1\n9.batch|FAILED|1:0|n1\n9.0|OUT_OF_MEMORY|0:125|n1")
    assert client.poll(["9"]).endings["9"].outcome == "oom_host"


def test_nothing_is_asked_about_no_jobs(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert client.poll([]).endings == {}


def test_while_accounting_is_down_the_controller_says_who_lives_and_nothing_has_ended(says):
    says("sacct", "slurmdbd: down", code=1)
    says("squeue", "9|RUNNING\n12_3|PENDING\n10|FAILED")
    answer = client.poll(["9", "10"])
    assert (answer.alive, answer.endings, answer.complete) == ({"9"}, {}, False)


def test_a_job_that_slurm_has_put_back_into_its_queue_lives_whatever_accounting_still_says(says):
    says("sacct", "7|NODE_FAIL|0:0|n1\n8|NODE_FAIL|0:0|n1\n9|PREEMPTED|0:0|n1\n10|FAILED|1:0|n1")
    says("squeue", "7|PENDING\n8|NODE_FAIL\n9|COMPLETING")
    answer = client.poll(["7", "8", "9", "10"])
    assert answer.alive == {"7", "9"}
    assert answer.endings.keys() == {"8", "10"}


def test_a_job_of_which_accounting_has_not_heard_lives_while_the_controller_knows_it(says):
    says("sacct", "7|COMPLETED|0:0|n1")
    says("squeue", "8|PENDING\n9|FAILED")
    answer = client.poll(["7", "8", "9", "10"])
    assert answer.alive == {"8", "9"}
    assert answer.complete


def test_while_the_controller_is_down_a_job_that_may_come_back_has_not_ended(says):
    says("sacct", "7|NODE_FAIL|0:0|n1\n8|FAILED|1:0|n1")
    says("squeue", "slurm_load_jobs error", code=1)
    answer = client.poll(["7", "8"])
    assert (answer.alive, answer.endings.keys(), answer.complete) == (set(), {"8"}, False)


def test_where_neither_answers_that_is_an_error(says):
    says("sacct", "slurm_load: down", code=1)
    says("squeue", "slurm_load: down", code=1)
    with pytest.raises(SchedulerError, match="squeue"):
        client.poll(["9"])


def test_a_command_that_fails_is_quoted(sacct):
    sacct("slurm_load: down", code=1)
    with pytest.raises(SchedulerError, match="sacct: exit code 1"):
        slurm.ask("sacct")


def sbatch(tmp_path, monkeypatch, body):
    path = tmp_path / "bin" / "sbatch"
    path.parent.mkdir()
    path.write_text(f"#!/bin/sh\ncat >{tmp_path}/script\n{body}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")


def test_slurm_is_asked_when_the_first_job_would_start(tmp_path, monkeypatch):
    said = "sbatch: Job 13 to start at 2026-11-21T02:23:04 using 1 processors on nodes n1 in partition debug"
    sbatch(tmp_path, monkeypatch, f'[ "$1" = --test-only ] && echo "{said}" >&2')
    assert client.expected_start("#!/bin/bash\ntrue\n") == "2026-11-21T02:23:04"
    assert (tmp_path / "script").read_text() == "#!/bin/bash\ntrue\n"


def test_slurm_that_does_not_say_is_no_answer(tmp_path, monkeypatch):
    sbatch(tmp_path, monkeypatch, "true")
    assert client.expected_start("#!/bin/bash\n") is None


def test_a_refusal_has_slurms_own_words(tmp_path, monkeypatch):
    sbatch(tmp_path, monkeypatch, 'echo "allocation failure: Invalid partition name specified" >&2; exit 1')
    with pytest.raises(SchedulerError, match="Invalid partition name"):
        client.expected_start("#!/bin/bash\n")


def test_an_sbatch_that_hangs_is_given_up(tmp_path, monkeypatch):
    sbatch(tmp_path, monkeypatch, "exec sleep 60")
    monkeypatch.setattr("runner.state.slurm.TIMEOUT_SECONDS", 0.3)
    with pytest.raises(SchedulerError, match="did not answer"):
        client.expected_start("#!/bin/bash\n")
