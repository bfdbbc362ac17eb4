"""Where a run stands is what its files say, and what Slurm may still do."""

import errno
import multiprocessing
import os
import socket
import time
from datetime import timedelta
from pathlib import Path

import pytest

from model.record.errors import UserError
from model.record.folder import RunFolder
from model.record.outcome import Outcome
from model.record.records import now
from runner.execute import reconcile
from runner.job.entry import attempt_of_restart
from runner.plan.plan import next_attempt
from runner.state import ledger, process
from runner.state.endings import Ending
from tests.analysis.fabricate import Folder, plan


@pytest.fixture
def stopped(root, monkeypatch):
    """An attempt that a signal has stopped, of a run that Slurm may start again, as this process's job."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    folder = Folder(root, plan("r1", chain=True))
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


def test_why_a_signal_has_stopped_a_run_that_is_not_requeued_slurm_may_still_say(root):
    folder = Folder(root, plan("r1", chain=False))
    folder.event("submitted", job_id="7")
    folder.start()
    folder.end("cancelled", reason="received SIGTERM")
    assert ledger.state(RunFolder(folder.path)).in_flight
    folder.event("ended", outcome="preempted", reason="Slurm: PREEMPTED")
    assert ledger.state(RunFolder(folder.path)).outcome == "preempted"


@pytest.mark.parametrize(("chain", "job_id"), [(False, "7"), (True, None)])
def test_what_slurm_cannot_start_again_has_ended(root, chain, job_id):
    folder = Folder(root, plan("r1", chain=chain))
    folder.event("claimed")
    folder.event("submitted", job_id=job_id)
    folder.start()
    folder.end("timeout")
    assert ledger.state(RunFolder(folder.path)).outcome == "timeout"


@pytest.mark.parametrize("job_id", [None, "8"])
@pytest.mark.fault
def test_a_job_that_starts_again_takes_no_attempt_of_another_job(stopped, job_id):
    stopped.event("claimed", attempt=2)
    stopped.event("submitted", attempt=2, job_id=job_id)
    (stopped.path / "attempt-2").mkdir()
    events = RunFolder(stopped.path).ledger
    assert attempt_of_restart(RunFolder(stopped.path), 1) is None
    assert RunFolder(stopped.path).ledger == events, "nothing is claimed, nothing is called ended"


@pytest.mark.parametrize("job_id", ["7", "9"])
def test_a_job_that_goes_on_for_another_takes_the_attempt_that_was_claimed_for_it(
    stopped, monkeypatch, job_id
):
    """Once it has begun, a restart of the new job takes it up as a restart of the first one would."""
    monkeypatch.setenv("SLURM_JOB_ID", job_id)
    monkeypatch.setenv("ASSAY_AFTER", "7")
    stopped.event("claimed", attempt=2)
    stopped.event("submitted", attempt=2, job_id=job_id)
    (stopped.path / "attempt-2").mkdir()
    assert attempt_of_restart(RunFolder(stopped.path), 1) == 2


def test_a_run_whose_job_goes_on_for_another_run_goes_on_with_it(stopped, monkeypatch):
    """Runs that share a node also share its next job."""
    monkeypatch.setenv("SLURM_JOB_ID", "9")
    monkeypatch.setenv("ASSAY_AFTER", "7")
    assert attempt_of_restart(RunFolder(stopped.path), 1) == 2
    assert RunFolder(stopped.path).attempt(2).job_id == "9"


def test_a_job_that_starts_again_takes_the_attempt_that_it_claimed_for_itself(stopped):
    stopped.event("claimed", attempt=2)
    stopped.event("submitted", attempt=2, job_id="7")
    (stopped.path / "attempt-2").mkdir()
    assert attempt_of_restart(RunFolder(stopped.path), 1) == 2


@pytest.mark.fault
def test_a_job_that_starts_again_loses_no_word_of_an_attempt_that_saved_and_ended(stopped, monkeypatch):
    """`scontrol requeue` leaves no state in accounting that says why the job ended."""
    monkeypatch.setenv("ASSAY_EARLIER", "")
    assert attempt_of_restart(RunFolder(stopped.path), 1) == 2
    ending = RunFolder(stopped.path).attempt(1).settled
    reason = "Slurm has started the job again, and its accounting does not say why"
    assert ending == ("cancelled", f"received SIGTERM ({reason})")


def test_a_job_that_starts_again_leaves_a_completed_run_alone(root):
    folder = Folder(root, plan("r1", chain=True))
    folder.event("submitted", job_id="7")
    folder.start()
    folder.end()
    assert attempt_of_restart(RunFolder(folder.path), 1) is None


@pytest.fixture
def run(root):
    """A planned run."""
    return RunFolder(Folder(root, plan("r1")).path)


def claims(run, number):
    return [event for event in run.attempt(number).noted if event.event == "claimed"]


@pytest.mark.fault
def test_nobody_sees_an_attempt_without_its_claim(run, monkeypatch):
    """Another command may look at any moment, also between the folder and the line in the ledger."""
    answers = []

    def looking(path, line):
        answers.append(reconcile.orphaned(ledger.state(run)))
        raise UserError("and here the launcher is killed")

    with monkeypatch.context() as patch:
        patch.setattr(ledger, "_append", looking)
        with pytest.raises(UserError):
            ledger.claim(run, 1, "local")
    assert answers == [False], "its launcher is alive"
    assert claims(run, 1)[0].pid == os.getpid()
    assert not ledger.claim(run, 1, "local"), "nobody claims it twice"
    monkeypatch.setattr("runner.state.process.alive", lambda claim: False)
    assert reconcile.orphaned(ledger.state(run)), "a claim whose launcher is dead"


@pytest.mark.fault
@pytest.mark.parametrize("code", [errno.EEXIST, errno.ENOTEMPTY, errno.ENOENT])
@pytest.mark.parametrize("done", [True, False])
def test_a_server_that_repeats_a_rename_does_not_hide_the_claim_from_its_maker(run, monkeypatch, code, done):
    """NFS answers a request that it has done already, and whose answer was lost, with an error."""
    rename = Path.rename

    def repeated(path, target):
        if done:
            rename(path, target)
        else:
            Path(target).mkdir()
            (Path(target) / "manifest.json").touch()
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(Path, "rename", repeated)
    assert ledger.claim(run, 1, "local") == done
    assert len(claims(run, 1)) == done
    assert not list(run.path.glob(".attempt*")), "nothing is left over"


@pytest.mark.fault
def test_a_claim_that_the_disk_refuses_is_an_error_and_claims_nothing(run, monkeypatch):
    def full(path, target):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(UserError, match="No space left"):
        ledger.claim(run, 1, "local")
    assert run.numbers() == []


def _claimed(path):
    return [ledger.claim(RunFolder(path), number, "local") for number in range(1, 101)]


@pytest.mark.fault
def test_a_forked_process_claims_in_its_own_name():
    """Two with one name, in the same microsecond, would both think that a claim is theirs."""
    assert process.own_identity()["pid"] == os.getpid()
    with multiprocessing.get_context("fork").Pool(1) as pool:
        (child,) = multiprocessing.active_children()
        assert pool.apply(process.own_identity)["pid"] == child.pid


@pytest.mark.fault
def test_of_many_launchers_one_gets_each_attempt(run):
    with multiprocessing.get_context("fork").Pool(4) as pool:
        answers = pool.map(_claimed, [run.path] * 4, chunksize=1)
    assert [sum(won) for won in zip(*answers, strict=True)] == [1] * 100
    assert all(len(claims(run, number)) == 1 for number in range(1, 101))


def test_a_released_number_can_be_claimed_again(run):
    assert ledger.claim(run, 1, "slurm")
    ledger.release(run, 1, "sbatch refused")
    assert run.numbers() == []
    assert ledger.claim(run, 1, "local")
    assert run.attempt(1).executor == "local"
    (run.attempt(1).path / "stdout.log").touch()
    ledger.release(run, 1, "by mistake")
    assert run.numbers() == [1], "what was started is never removed"


@pytest.mark.fault
def test_an_attempt_of_an_earlier_version_without_a_claim_is_left_alone_for_minutes(run):
    """It made the folder, then wrote the line: between the two it looked dead."""
    attempt = run.attempt(1).path
    attempt.mkdir()
    assert not reconcile.orphaned(ledger.state(run))
    assert not ledger.claim(run, 1, "local")
    an_hour_ago = time.time() - 3600
    os.utime(attempt, (an_hour_ago, an_hour_ago))
    assert reconcile.orphaned(ledger.state(run))


@pytest.mark.fault
@pytest.mark.parametrize(("silent_hours", "dead"), [(0.5, False), (4, True)])
def test_a_run_on_another_machine_is_alive_as_long_as_it_writes(root, silent_hours, dead):
    """Only its own machine knows whether its process is alive; it was claimed long ago."""
    folder = Folder(root, plan("r1"))
    folder.event("claimed", host=f"not-{socket.gethostname()}", pid=1, pid_started=1.0)
    folder.start()
    folder.step(1)
    moment = (now() - timedelta(hours=silent_hours)).timestamp()
    for path in (attempt := folder.path / "attempt-1", attempt / "steps.jsonl"):
        os.utime(path, (moment, moment))
    assert reconcile.orphaned(ledger.state(RunFolder(folder.path))) == dead


@pytest.mark.fault
def test_a_run_that_another_launch_started_since_its_status_was_read_is_not_started_again(run):
    """Planned as attempt 2, it would run a second time beside attempt 1."""
    state = ledger.state(run)
    assert ledger.claim(run, 1, "local"), "another launch is faster"
    task = next_attempt(run, run.run, state)
    assert not ledger.claim(run, task.number, "local")
    assert next_attempt(run, run.run, ledger.state(run)).number == 2


def test_the_nodes_that_failed_are_in_the_line_of_an_end(tmp_path):
    folder = RunFolder(tmp_path)
    ledger.record_end(folder, 1, Ending(Outcome.NODE_FAILED, "said", failed_nodes=("n1", "n2")))
    (line,) = folder.ledger
    assert line.failed_nodes == ("n1", "n2")
