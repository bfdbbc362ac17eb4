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
    sacct("7_0|COMPLETED|0:0\n7_[1-2,5%4]|CANCELLED by 0|0:0\n7_3|RUNNING|0:0")
    found = scheduler.endings(["7_0", "7_1", "7_2", "7_3", "7_5", "7_9"])
    assert {job: ending.outcome.value for job, ending in found.items()} == {
        "7_0": "lost", "7_1": "cancelled", "7_2": "cancelled", "7_5": "cancelled",
    }  # fmt: skip


def test_a_step_out_of_memory_is_why_its_job_failed(sacct):
    sacct("9|FAILED|1:0\n9.batch|FAILED|1:0\n9.0|OUT_OF_MEMORY|0:125")
    assert scheduler.endings(["9"])["9"].outcome == "oom_host"


def test_nothing_is_asked_about_no_jobs(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert scheduler.endings([]) == {}


def test_a_scheduler_that_fails_is_quoted(sacct):
    sacct("slurm_load: down", code=1)
    with pytest.raises(SchedulerError, match="sacct: exit code 1"):
        scheduler.endings(["9"])
