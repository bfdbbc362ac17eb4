"""Files are looked at often, and Slurm after pauses that grow while nothing changes."""

from itertools import pairwise

import pytest

from model.record.folder import RunFolder
from runner.execute import reconcile
from runner.execute.reconcile import Patience, RunWatch
from runner.state import ledger
from tests.analysis.fabricate import Folder, plan


def asked(seen, until):
    """The seconds at which Slurm is asked, of those until this one; `seen` says what is seen at each."""
    now = [0.0]
    patience = Patience(lambda: now[0])
    seconds = []
    for second in range(until):
        now[0] = float(second)
        if patience.due(seen(second)):
            seconds.append(second)
    return seconds


def pauses(times):
    return [after - before for before, after in pairwise(times)]


def test_while_nothing_changes_the_pauses_grow_from_two_seconds_to_a_minute():
    lengths = pauses(asked(lambda _: "the same", 900))
    assert lengths[0] == 2
    assert lengths == sorted(lengths)
    assert set(lengths[-5:]) == {60}


def test_a_change_makes_them_short_again_and_is_asked_about_soon():
    seconds = asked(lambda second: second >= 500, 900)
    before = [second for second in seconds if second < 500]
    after = [second for second in seconds if second >= 500]
    assert before[-1] - before[-2] == 60
    assert after[0] - 500 == 2
    assert pauses(after)[:2] == [2, 3]


def test_what_changes_all_the_time_is_asked_about_every_two_seconds():
    assert set(pauses(asked(lambda second: second, 60))) == {2}


@pytest.fixture
def looks(root, monkeypatch):
    """Looks at a run again and again; returns how often Slurm was asked."""
    folder = Folder(root, plan("r1", study="tiny"))
    requests = []

    def reconciled(*_):
        requests.append(1)
        return [ledger.brief_state(RunFolder(folder.path))]

    monkeypatch.setattr(reconcile, "reconciled", reconciled)

    def look(times):
        monitor = RunWatch(root, "tiny")
        phases = [monitor.look()[0].phase for _ in range(times)]
        return phases, len(requests)

    return folder, look


def test_the_first_look_asks_slurm_and_the_next_ones_show_the_files(looks):
    folder, look = looks
    folder.event("claimed", executor="slurm")
    folder.event("submitted", executor="slurm", job_id="7")
    folder.start()
    assert look(5) == (["running"] * 5, 1)


def test_runs_of_this_machine_are_looked_after_each_time(looks):
    folder, look = looks
    folder.event("claimed", executor="local")
    folder.start()
    assert look(5) == (["running"] * 5, 5)
