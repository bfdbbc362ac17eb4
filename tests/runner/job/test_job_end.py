"""When Slurm ends a job, as a run in it asks."""

import time
from datetime import datetime, timedelta

import pytest

from runner.job.slurm import is_preempted, job_end


@pytest.fixture
def squeue(tmp_path, monkeypatch):
    """Answers with these lines, in a job of this number."""

    def answers(number, *lines):
        monkeypatch.delenv("SLURM_JOB_END_TIME", raising=False)
        monkeypatch.setenv("SLURM_JOB_ID", number)
        monkeypatch.setenv("PATH", str(tmp_path))
        (tmp_path / "squeue").write_text("#!/bin/sh\n" + "".join(f"echo '{line}'\n" for line in lines))
        (tmp_path / "squeue").chmod(0o755)

    return answers


def left():
    return job_end() - time.monotonic()


def test_the_last_element_of_an_array_does_not_take_the_end_of_another_for_its_own(squeue):
    """It has the array's number, for which squeue shows all elements; one of them is just ending."""
    now = datetime.now().replace(microsecond=0)  # Slurm prints local time
    squeue("12", f"13 {now - timedelta(seconds=1):%FT%T}", f"12 {now + timedelta(minutes=10):%FT%T}")
    assert 500 < left() <= 601


@pytest.mark.parametrize("given", ["100", "banana", "-1"])
def test_an_end_that_is_over_or_no_time_is_no_limit(squeue, monkeypatch, given):
    """Of a shell that has outlived its job."""
    squeue("12")
    monkeypatch.setenv("SLURM_JOB_END_TIME", given)
    assert job_end() is None


@pytest.mark.parametrize("lines", [(), ("12 N/A",), ("12 NONE",), ("13 2026-01-01T00:00:00",), ("nonsense",)])
def test_an_end_that_slurm_does_not_tell_is_no_limit(squeue, lines):
    squeue("12", *lines)
    assert job_end() is None


@pytest.mark.parametrize(
    ("state", "started", "told", "preempted"),
    [
        ("RUNNING", "2026-03-01T12:00:00", "2026-03-01T12:30:00", True),
        ("RUNNING", "2026-03-01T12:00:00", "None", False),
        ("RUNNING", "2026-03-01T12:00:00", "2026-03-01T11:00:00", False),
        ("PENDING", "2026-03-01T12:00:00", "2026-03-01T12:30:00", False),
    ],
    ids=["told to end", "never", "before it was requeued", "requeued by Slurm"],
)
def test_a_job_is_preempted_if_slurm_has_told_it_to_end_since_it_started(
    tmp_path, monkeypatch, state, started, told, preempted
):
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    monkeypatch.setenv("PATH", str(tmp_path))
    said = f"JobId=12 JobName=x JobState={state} StartTime={started} PreemptTime={told} Comment=a b"
    (tmp_path / "scontrol").write_text(f"#!/bin/sh\necho '{said}'\n")
    (tmp_path / "scontrol").chmod(0o755)
    assert is_preempted() == preempted


def test_a_job_that_cannot_ask_slurm_is_not_known_to_be_preempted(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    assert not is_preempted()
    monkeypatch.delenv("SLURM_JOB_ID")
    assert not is_preempted()
