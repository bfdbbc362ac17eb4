"""Where a run stands is what its files say, and what Slurm may still do."""

import pytest

from model.disk.folder import RunFolder
from runner.job.entry import attempt_of_restart
from runner.state import ledger
from tests.analysis.fabricate import Folder, plan


@pytest.fixture
def stopped(root):
    """An attempt that a signal has stopped, of a run that Slurm may start again."""
    folder = Folder(root, plan("r1", requeue=True))
    folder.event("claimed", executor="slurm")
    folder.event("submitted", executor="slurm", job_id="7")
    folder.start()
    folder.end("cancelled", reason="received SIGTERM")
    return folder


def test_an_attempt_that_a_signal_has_stopped_is_in_flight_until_slurm_says_that_it_has_ended(stopped):
    state = ledger.state(RunFolder(stopped.path))
    assert (state.phase, state.outcome) == ("running", None)
    stopped.event("ended", outcome="cancelled", reason="Slurm: CANCELLED")
    assert ledger.state(RunFolder(stopped.path)).outcome == "cancelled"


@pytest.mark.parametrize(("requeue", "job_id"), [(False, "7"), (True, None)])
def test_what_slurm_cannot_start_again_has_ended(root, requeue, job_id):
    folder = Folder(root, plan("r1", requeue=requeue))
    folder.event("claimed")
    folder.event("submitted", job_id=job_id)
    folder.start()
    folder.end("timeout")
    assert ledger.state(RunFolder(folder.path)).outcome == "timeout"


@pytest.mark.parametrize("job_id", [None, "8"])
def test_a_job_that_starts_again_takes_no_attempt_of_another_job(stopped, job_id):
    stopped.event("claimed", attempt=2)
    stopped.event("submitted", attempt=2, job_id=job_id)
    (stopped.path / "attempt-2").mkdir()
    before = RunFolder(stopped.path).ledger
    assert attempt_of_restart(RunFolder(stopped.path), 1) is None
    assert RunFolder(stopped.path).ledger == before, "nothing is claimed, nothing is called ended"


def test_a_job_that_starts_again_takes_the_attempt_that_it_claimed_for_itself(stopped):
    stopped.event("claimed", attempt=2)
    stopped.event("submitted", attempt=2, job_id="7")
    (stopped.path / "attempt-2").mkdir()
    assert attempt_of_restart(RunFolder(stopped.path), 1) == 2


def test_a_job_that_starts_again_leaves_a_completed_run_alone(root):
    folder = Folder(root, plan("r1", requeue=True))
    folder.event("submitted", job_id="7")
    folder.start()
    folder.end()
    assert attempt_of_restart(RunFolder(folder.path), 1) is None
