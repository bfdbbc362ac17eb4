"""Whoever waits for completed runs on Slurm waits for their profiles, too, but not for ever."""

import logging
from datetime import timedelta

import pytest

from model.record.config import CallConfig, RunConfig
from model.record.folder import RunFolder
from model.record.records import now
from runner.execute import wait as waiting
from runner.execute.slurm import client
from runner.state import ledger
from runner.state.slurm import NoAnswer
from tests.analysis.fabricate import Folder, plan

MISSING = "tiny/r1 completed without a profile of its steps: its output may say why"
YET = "tiny/r1 has no profile of its steps yet: its job may still make it"


@pytest.fixture
def run(root, caplog):
    """A run that completed in job 7 a minute ago, and has no profile."""
    caplog.set_level(logging.INFO)
    return completed(root, "r1")


def completed(root, name, minutes=1, outcome="completed", **config):
    folder = Folder(root, plan(name, study="tiny", **config))
    folder.event("submitted", job_id="7")
    folder.start()
    folder.end(outcome, ended_at=now() - timedelta(minutes=minutes))
    return folder


def profile(run):
    (run.path / "attempt-1/profile.json").write_text("{}")


def wait(run, monkeypatch, *answers, since=2):
    """Wait for a run's profile; each look at the queue gets the next answer. Returns how many were not needed."""
    remaining = list(answers)

    def running():
        answer = remaining.pop(0)
        return answer() or {"7"} if callable(answer) else answer

    monkeypatch.setattr(waiting, "POLL_SECONDS", 0)
    monkeypatch.setattr("runner.execute.reconcile.SHORTEST", 0)
    monkeypatch.setattr(client, "running", running)
    waiting.wait_until_profiled([ledger.state(RunFolder(run.path))], now() - timedelta(minutes=since))
    return len(remaining)


def absent():
    raise NoAnswer("Unable to contact slurm controller")


def test_a_completed_run_is_waited_for_until_it_has_its_profile(run, monkeypatch, caplog):
    assert wait(run, monkeypatch, {"7", "8"}, {"7"}, lambda: profile(run)) == 0
    assert caplog.messages == ["profiling the steps of 1 completed run; after Ctrl-C the jobs still do it"]


@pytest.mark.fault
def test_a_job_that_ends_without_a_profile_is_named(run, monkeypatch, caplog):
    assert wait(run, monkeypatch, {"7"}, {"7"}, {"8"}, {"8"}) == 0
    assert caplog.messages[1:] == [MISSING]


@pytest.mark.fault
def test_a_profile_is_waited_for_while_slurm_does_not_answer(run, monkeypatch, caplog):
    assert wait(run, monkeypatch, {"7"}, absent, absent, lambda: profile(run)) == 0
    assert MISSING not in caplog.messages


@pytest.mark.fault
@pytest.mark.parametrize("answer", [{"7"}, absent], ids=["its job goes on", "no answer"])
def test_nobody_waits_for_a_profile_for_ever(run, monkeypatch, caplog, answer):
    def later():
        monkeypatch.setattr(waiting, "now", lambda: now() + waiting.PROFILE_WITHIN)
        return answer() if callable(answer) else None

    assert wait(run, monkeypatch, {"7"}, later, {"7"}) == 0, "a job may be suspended"
    assert caplog.messages[1:] == [YET]


@pytest.mark.parametrize("which", ["measured", "failed", "old", "attention alone"])
def test_slurm_is_not_asked_about_runs_that_get_no_profile(root, monkeypatch, caplog, which):
    minutes, outcome = (60 if which == "old" else 1), ("failed" if which == "failed" else "completed")
    alone = RunConfig(task="attention", call=CallConfig(shape="B1 T512 H16 D128", steps=7))
    config = {"config": alone} if which == "attention alone" else {}
    run = completed(root, which, minutes, outcome, **config)
    if which == "measured":
        profile(run)
    assert wait(run, monkeypatch, {"7"}) == 1
    assert not caplog.messages


@pytest.mark.fault
def test_a_run_that_ended_long_before_the_others_is_named_and_those_of_an_earlier_launch_are_not(
    root, monkeypatch, caplog
):
    old = completed(root, "old", minutes=60)
    assert wait(old, monkeypatch, {"8"}, since=90) == 0
    assert caplog.messages == [MISSING.replace("r1", "old")]
    assert wait(old, monkeypatch, {"7"}, since=30) == 1
    assert len(caplog.messages) == 1
