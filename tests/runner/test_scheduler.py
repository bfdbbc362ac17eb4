"""Slurm's answers are read as Slurm means them."""

import pytest

from runner import scheduler
from runner.errors import SchedulerError


@pytest.fixture
def sacct(tmp_path, monkeypatch):
    """Puts a program named sacct on PATH that prints a text."""

    def answer(text, code=0):
        (tmp_path / "sacct").write_text(f"#!/bin/sh\ncat <<'X'\n{text}\nX\nexit {code}\n")
        (tmp_path / "sacct").chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    return answer


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


def test_while_accounting_is_down_the_controller_says_who_lives_and_nothing_has_ended(sacct, tmp_path):
    sacct("slurmdbd: down", code=1)
    (tmp_path / "squeue").write_text("#!/bin/sh\necho 9; echo 12_3\n")
    (tmp_path / "squeue").chmod(0o755)
    answer = scheduler.poll(["9", "10"])
    assert (answer.alive, answer.endings, answer.complete) == ({"9"}, {}, False)


def test_where_neither_answers_that_is_an_error(sacct, monkeypatch, tmp_path):
    sacct("slurm_load: down", code=1)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    with pytest.raises(SchedulerError, match="squeue"):
        scheduler.poll(["9"])


def test_a_command_that_fails_is_quoted(sacct):
    sacct("slurm_load: down", code=1)
    with pytest.raises(SchedulerError, match="sacct: exit code 1"):
        scheduler.ask("sacct")
