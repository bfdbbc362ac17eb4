"""A job runs only the attempts that are its own, once."""

import pytest

from model.disk.folder import RunFolder
from runner.job.entry import _place, run_slot
from tests.analysis.fabricate import Folder, plan


@pytest.fixture
def claimed(root, monkeypatch):
    """An attempt that array tiny-1 was meant for."""
    monkeypatch.setenv("SLURM_JOB_NAME", "tiny-1")
    monkeypatch.setattr("runner.job.entry.run_attempt", lambda run, number, _fellows, _slot: f"ran {number}")
    monkeypatch.setattr("runner.job.entry.os.dup2", lambda _file, _descriptor: None)
    folder = Folder(root, plan("r1", study="tiny"))
    folder.event("claimed", executor="slurm")
    folder.event("intent", submission="tiny-1", index=0, count=1, slot=0)
    (folder.path / "attempt-1").mkdir()
    return folder


def run(folder):
    return run_slot([str(RunFolder(folder.path).path)], [1])


def test_a_job_runs_its_attempt_whether_or_not_its_number_is_recorded_yet(claimed):
    assert run(claimed) == "ran 1"


def test_a_job_that_was_renamed_runs_its_attempt(claimed, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_NAME", "renamed")
    assert run(claimed) == "ran 1"


@pytest.mark.fault
def test_an_array_that_slurm_accepts_after_it_was_given_up_leaves_its_attempts_to_the_next(
    claimed, monkeypatch
):
    claimed.event("released")
    assert run(claimed) == "nothing left to do"
    claimed.event("claimed", executor="slurm")
    claimed.event("intent", submission="tiny-2", index=0, count=1, slot=0)
    assert run(claimed) == "nothing left to do"
    monkeypatch.setenv("SLURM_JOB_NAME", "tiny-2")
    assert run(claimed) == "ran 1"


@pytest.mark.fault
def test_on_the_second_node_of_a_job_nothing_starts(claimed, monkeypatch):
    """A site's own rules can give a job more nodes than it asks for."""
    monkeypatch.setenv("SLURM_NODEID", "1")
    assert run(claimed) == "unused task"


@pytest.mark.parametrize(
    ("runs", "processes", "where", "place"),
    [
        (1, 1, {"SLURM_LOCALID": "0"}, (0, 0)),
        (2, 1, {"SLURM_LOCALID": "1"}, (1, 0)),
        (2, 1, {"SLURM_LOCALID": "0", "SLURM_NODEID": "1"}, (2, 0)),
        (1, 4, {"SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NODEID": "1"}, (0, 3)),
        (1, 4, {"SLURM_PROCID": "4"}, (1, 0)),
        (2, 2, {"SLURM_PROCID": "3", "SLURM_LOCALID": "3"}, (1, 1)),
    ],
    ids=["alone", "second slot", "a node too many", "second node", "a task too many", "two runs on a node"],
)
def test_a_task_has_a_slot_and_a_rank_in_it_and_one_too_many_has_a_slot_that_no_run_has(
    runs, processes, where, place, monkeypatch
):
    for name in ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in where.items():
        monkeypatch.setenv(name, value)
    assert _place(runs, processes) == place
