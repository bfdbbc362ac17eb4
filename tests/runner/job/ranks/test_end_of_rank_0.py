"""Where rank 0 has stopped, another process says so in its place, and ends it."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from model.record.errors import UserError
from model.record.folder import RunFolder
from model.record.outcome import Outcome
from model.training.parallel.place import Place
from runner.job.ranks import follower as followers
from runner.job.ranks.follower import STOPPED, Follower, end_rank_0, stand_by
from runner.job.ranks.meeting import Meeting, node_name
from runner.job.ranks.standstill import Whereabouts
from runner.state import process
from tests.analysis.fabricate import Folder, plan

pytestmark = pytest.mark.fault
WAITS = Whereabouts(7, "world.py:60", waits=True)
HANGS = f"hangs: nothing has moved for 120 s; rank 0 on n1 does not answer; rank 1 on {node_name()} waits for the others"


class Left(Exception):
    """What ends a process at once."""


@pytest.fixture(autouse=True)
def _leaves(monkeypatch):
    def leave(code):
        raise Left(code)

    monkeypatch.setattr("os._exit", leave)


@pytest.fixture
def first():
    """A process that does nothing."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as rank_0:
        yield rank_0
        rank_0.kill()


@pytest.fixture
def ended(root, first):
    """Has a process of a run find that rank 0, which is `first`, has stopped; returns the run and what it told it."""
    folder = Folder(root, plan("r1"))
    folder.event("claimed")
    identity = process.own_identity() | {"pid": first.pid, "pid_started": process.started(first.pid)}
    folder.start(**identity, ranks=[{"node": "n1"}, {"node": "n2"}])

    def end(outcome=None, code=STOPPED):
        if outcome:
            folder.end(outcome)
        reports = []
        leader = SimpleNamespace(
            report_ending=lambda ending, **options: reports.append((ending.reason, options))
        )
        follower = Follower(RunFolder(folder.path), Place(1, 2, 1), Meeting(attempt=1), [])
        with pytest.raises(Left, match=str(code)):
            end_rank_0(follower, leader, WAITS, 120.0)
        return RunFolder(folder.path), reports

    return end


def test_it_is_in_the_ledger_that_rank_0_hangs_and_rank_0_is_killed(ended, first):
    run, reports = ended()
    outcome, reason = run.attempt(1).settled
    assert (outcome, reason.startswith(HANGS)) == (Outcome.FAILED, True)
    assert reports == [(reason, {"echo": False, "of_all": True})]
    assert first.wait(60) == -9


def test_another_process_that_has_said_it_is_not_repeated(ended):
    ended()
    run, reports = ended()
    assert [event.event for event in run.ledger] == ["claimed", "ended"]
    assert not reports


def test_a_ledger_that_cannot_be_written_does_not_keep_rank_0(ended, first, root, monkeypatch):
    def full(*_):
        raise UserError("No space left on device")

    monkeypatch.setattr(followers.ledger, "record_end", full)
    ended()
    assert first.wait(60) == -9


def test_a_rank_0_that_has_recorded_its_end_is_killed_unless_it_waits_to_requeue_its_job(ended, first):
    ended("node_failed", code=1)
    assert first.poll() is None
    ended("completed")
    assert first.wait(60) == -9


def test_a_slurm_task_fails_where_its_process_found_rank_0_stopped_so_that_srun_ends_it(monkeypatch):
    monkeypatch.setattr(followers, "Leader", lambda *_, **__: None)
    monkeypatch.setattr(followers.signal, "signal", lambda *_: None)
    child = SimpleNamespace(wait=lambda: STOPPED)
    follower = SimpleNamespace(meeting=None, place=Place(1, 2, 0), start=lambda: child)
    with pytest.raises(Left, match=str(STOPPED)):
        stand_by(follower)
