"""Slurm's answers are read as Slurm means them."""

import pytest

from runner import scheduler
from runner.errors import SchedulerError


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
    answer = scheduler.poll(["7_0", "7_1", "7_2", "7_3", "7_5", "7_9"])
    assert answer.alive == {"7_3"}
    found = answer.endings
    assert {job: ending.outcome.value for job, ending in found.items()} == {
        "7_0": "lost", "7_1": "cancelled", "7_2": "cancelled", "7_5": "cancelled",
    }  # fmt: skip


def test_a_step_out_of_memory_is_why_its_job_failed(sacct):
    sacct("9|FAILED|1:0|n1\n9.batch|FAILED|1:0|n1\n9.0|OUT_OF_MEMORY|0:125|n1")
    assert scheduler.poll(["9"]).endings["9"].outcome == "oom_host"


def test_nothing_is_asked_about_no_jobs(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert scheduler.poll([]).endings == {}


def test_while_accounting_is_down_the_controller_says_who_lives_and_nothing_has_ended(says):
    says("sacct", "slurmdbd: down", code=1)
    says("squeue", "9|RUNNING\n12_3|PENDING\n10|FAILED")
    answer = scheduler.poll(["9", "10"])
    assert (answer.alive, answer.endings, answer.complete) == ({"9"}, {}, False)


def test_a_job_that_slurm_has_put_back_into_its_queue_lives_whatever_accounting_still_says(says):
    says("sacct", "7|NODE_FAIL|0:0|n1\n8|NODE_FAIL|0:0|n1\n9|PREEMPTED|0:0|n1\n10|FAILED|1:0|n1")
    says("squeue", "7|PENDING\n8|NODE_FAIL\n9|COMPLETING")
    answer = scheduler.poll(["7", "8", "9", "10"])
    assert answer.alive == {"7", "9"}
    assert answer.endings.keys() == {"8", "10"}


def test_a_job_of_which_accounting_has_not_heard_lives_while_the_controller_knows_it(says):
    says("sacct", "7|COMPLETED|0:0|n1")
    says("squeue", "8|PENDING\n9|FAILED")
    answer = scheduler.poll(["7", "8", "9", "10"])
    assert answer.alive == {"8", "9"}
    assert answer.complete


def test_while_the_controller_is_down_a_job_that_may_come_back_has_not_ended(says):
    says("sacct", "7|NODE_FAIL|0:0|n1\n8|FAILED|1:0|n1")
    says("squeue", "slurm_load_jobs error", code=1)
    answer = scheduler.poll(["7", "8"])
    assert (answer.alive, answer.endings.keys(), answer.complete) == (set(), {"8"}, False)


def test_where_neither_answers_that_is_an_error(says):
    says("sacct", "slurm_load: down", code=1)
    says("squeue", "slurm_load: down", code=1)
    with pytest.raises(SchedulerError, match="squeue"):
        scheduler.poll(["9"])


def test_a_command_that_fails_is_quoted(sacct):
    sacct("slurm_load: down", code=1)
    with pytest.raises(SchedulerError, match="sacct: exit code 1"):
        scheduler.ask("sacct")
