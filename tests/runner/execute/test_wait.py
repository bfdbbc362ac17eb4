"""`launch --wait` waits through times in which Slurm does not answer."""

import shutil
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace

import pytest

from model.record.folder import RunFolder
from runner.execute import launch, reconcile, wait
from runner.execute.slurm.submit import SubmitUnknown
from runner.inputs.profile import read_cluster
from runner.state import ledger
from runner.state.attempts import JobShape, NextAttempt, jobs_folder
from runner.state.slurm import NoAnswer, SchedulerError
from tests.analysis.fabricate import Folder, plan


class Waiting:
    """A plan of one run that is still to be submitted, and what each call of sbatch does about it."""

    def __init__(self, root, monkeypatch, *calls):
        self.folder, self.calls = Folder(root, plan("r1", study="tiny")), list(calls)
        run = RunFolder(self.folder.path)
        jobs_folder(run.path.parent).mkdir()
        (profile := root / "slurm.yaml").write_text("executor: slurm\nslurm: {partition: gpu}\n")
        self.task = NextAttempt(run, 1, "a label", 5, JobShape(None, 60, 1))
        self.plan = SimpleNamespace(
            root=root, study_folder=root / "tiny", study=SimpleNamespace(name="tiny"), runs=[(run.run, None)],
            cluster=read_cluster(str(profile)),
        )  # fmt: skip
        monkeypatch.setattr(launch.slurm, "submit", self.submit)
        monkeypatch.setattr(wait, "POLL_SECONDS", 0.02)
        monkeypatch.setattr(reconcile, "SHORTEST", 0.02)
        monkeypatch.setattr(reconcile, "UNANSWERED", timedelta(seconds=0.3))

    def submit(self, tasks, *_):
        for task in tasks:
            if ledger.claim(task.folder, task.number, "slurm"):
                self.calls.pop(0)(self, task)

    def absent(self, task):
        """Slurm does not answer, so the claim is released."""
        ledger.release(task.folder, task.number, "no answer")
        raise NoAnswer("Unable to contact slurm controller")

    def unknown(self, task):
        """sbatch hangs, and has submitted nothing."""
        ledger.record_intent(task.folder, task.number, "tiny-1", 0, 1)
        raise SubmitUnknown("sbatch did not answer")

    def accepted(self, task):
        """Slurm takes it, and it completes at once."""
        ledger.record_job(task.folder, task.number, "7")
        shutil.rmtree(task.folder.attempt(1).path)  # the fabricated attempt takes the place of the claim
        self.folder.start()
        self.folder.end()

    def refused(self, task):
        ledger.release(task.folder, task.number, "refused")
        raise SchedulerError("invalid partition")


@pytest.mark.fault
def test_a_moment_without_slurm_does_not_end_it(root, monkeypatch):
    waiting = Waiting(root, monkeypatch, Waiting.absent, Waiting.absent, Waiting.accepted)
    remaining = launch.submit_attempts(waiting.plan, [waiting.task], wait=True)
    assert remaining == [waiting.task]
    wait.wait_for(waiting.plan, remaining)
    assert ledger.state(waiting.task.folder).outcome == "completed"


@pytest.mark.fault
def test_a_run_whose_sbatch_did_not_answer_is_submitted_again_once_slurm_does_not_know_it(
    root, monkeypatch, says
):
    says("sacct")
    says("squeue")
    waiting = Waiting(root, monkeypatch, Waiting.unknown, Waiting.accepted)
    wait.wait_for(waiting.plan, [waiting.task])
    state = ledger.state(waiting.task.folder)
    assert (state.outcome, state.attempt) == ("completed", 1)


@pytest.mark.fault
def test_a_run_whose_sbatch_did_not_answer_is_found_by_its_name(root, monkeypatch, says):
    """Slurm shows it as ended when it is asked next."""
    says("sacct", "7|FAILED|1:0|n1|2026-11-21T12:00:00|tiny-1")
    says("squeue", f"{root.parent.stat().st_uid}|7|tiny-1")
    waiting = Waiting(root, monkeypatch, Waiting.unknown)
    wait.wait_for(waiting.plan, [waiting.task])
    state = ledger.state(waiting.task.folder)
    assert (state.job_id, state.outcome) == ("7", "failed")


def test_a_refusal_ends_it(root, monkeypatch):
    waiting = Waiting(root, monkeypatch, Waiting.refused)
    with pytest.raises(SchedulerError, match="invalid partition"):
        wait.wait_for(waiting.plan, [waiting.task])


@pytest.mark.fault
def test_without_wait_no_answer_is_an_error(root, monkeypatch):
    waiting = Waiting(root, monkeypatch, Waiting.absent)
    with pytest.raises(NoAnswer, match="Unable to contact"):
        launch.submit_attempts(waiting.plan, [waiting.task])


@pytest.mark.fault
@pytest.mark.parametrize("noticed", ["by itself", "by Slurm"])
def test_a_retry_avoids_the_nodes_that_failed_whatever_the_reason_says(root, monkeypatch, noticed):
    """A checkpoint that the attempt saved, or a site's own words, may stand before the node in the reason."""
    waiting = Waiting(root, monkeypatch, Waiting.accepted)
    ending = {"outcome": "node_failed", "reason": "said otherwise"}
    if noticed == "by itself":
        waiting.folder.start()
        waiting.folder.end(**ending, failed_nodes=["n3"])
    else:  # before it could write anything
        ledger.claim(waiting.task.folder, 1, "slurm")
        waiting.folder.event("ended", **ending, host="n3")
    calls = []

    def submitted(_plan, tasks, exclude, wait):
        calls.append(([task.number for task in tasks], exclude))
        waiting.folder.start(2)
        waiting.folder.end(attempt=2)
        return ()

    monkeypatch.setattr(wait, "submit_attempts", submitted)
    monkeypatch.setattr(wait, "_next_attempts", lambda _plan, _states: [replace(waiting.task, number=2)])
    wait.wait_for(waiting.plan, [])
    assert calls == [([2], ["n3"])]


@pytest.mark.parametrize(
    ("chain", "beginning", "steps", "retried"),
    [(True, 0, 3, True), (True, 3, 3, False), (False, 0, 3, False)],
)
@pytest.mark.fault
def test_a_run_whose_job_found_no_next_one_is_started_again_as_long_as_it_gets_farther(
    root, chain, beginning, steps, retried
):
    """However often that takes: `retries` counts what the run had no part in."""
    folder = Folder(root, plan("r1", chain=chain))
    folder.event("submitted", job_id="7")
    folder.start(resumed_step=beginning or None)
    folder.end("timeout", steps=steps)
    folder.event("ended", outcome="timeout")
    assert wait.is_retried(ledger.state(RunFolder(folder.path)), retries=0) == retried


@pytest.mark.fault
def test_attempts_of_a_chain_are_no_retries(root):
    """A run that went on in three next jobs and then lost its node has all of its retries left."""
    folder = Folder(root, plan("r1", chain=True))
    for attempt in range(1, 4):
        folder.start(attempt)
        folder.end("timeout", attempt=attempt, steps=attempt)
        folder.event("ended", attempt=attempt, outcome="timeout")
    for attempt, retried in ((4, True), (5, False)):
        folder.event("submitted", attempt=attempt, job_id=str(attempt))
        folder.start(attempt)
        folder.event("ended", attempt=attempt, outcome="node_failed")
        assert wait.is_retried(ledger.state(RunFolder(folder.path)), retries=1) == retried
