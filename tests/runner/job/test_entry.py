"""A job runs only the attempts that are its own, once."""

import os
import signal
import socket
from functools import partial

import pytest

from model.record.config import RunConfig
from model.record.folder import RunFolder
from runner.job.entry import run_slot, slot_and_rank
from runner.job.ranks.meeting import Meeting, NobodyCame, publish, wait_for_meeting
from runner.state import gpus
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


@pytest.mark.parametrize(
    ("shows", "choice", "own"),
    [
        ({"CUDA_VISIBLE_DEVICES": "4,5"}, "CUDA_VISIBLE_DEVICES", "5"),
        ({}, "CUDA_VISIBLE_DEVICES", "1"),
        ({"ROCR_VISIBLE_DEVICES": "4,5"}, "HIP_VISIBLE_DEVICES", "1"),  # of an AMD node, counted from 0
    ],
)
def test_runs_that_share_a_node_whose_gpus_slurm_did_not_count_have_their_own(
    claimed, monkeypatch, tmp_path, shows, choice, own
):
    for name in (gpus.CUDA, gpus.HIP, gpus.ROCR):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"ASSAY_SHARED_GPUS": "yes", "SLURM_LOCALID": "1", **shows}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv(choice, shows.get(choice, ""))  # also so that it is as before afterwards
    if choice not in shows:
        del os.environ[choice]
    monkeypatch.setattr(gpus, "DEVICES", tmp_path)  # whatever this machine has
    monkeypatch.setattr(gpus, "NODES", tmp_path)
    run_slot([str(RunFolder(claimed.path).path)] * 2, [1, 1])
    assert os.environ[choice] == own


def test_a_job_that_was_renamed_runs_its_attempt(claimed, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_NAME", "renamed")
    assert run(claimed) == "ran 1"


@pytest.mark.parametrize(("devices", "own"), [(None, "1"), ("4,5,6", "5")])
def test_runs_that_share_gpus_nobody_asked_for_take_the_one_of_their_slot(claimed, monkeypatch, devices, own):
    monkeypatch.setenv("ASSAY_SHARED_GPUS", "yes")
    monkeypatch.setenv("SLURM_LOCALID", "1")
    monkeypatch.setattr(gpus, "DEVICES", claimed.path / "none")
    monkeypatch.setattr(gpus, "NODES", claimed.path / "none")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if devices:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", devices)
    other = str(RunFolder(claimed.path).path)
    assert run_slot([other, other], [1, 1]) == "ran 1"
    assert os.environ["CUDA_VISIBLE_DEVICES"] == own


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
@pytest.mark.parametrize("wrote", [True, False])
def test_a_start_that_is_lost_before_its_manifest_is_an_attempt_if_it_wrote_anything(
    claimed, monkeypatch, wrote
):
    """Its output stays its own, and the ledger says how it ended."""
    claimed.event("submitted", job_id="7")
    output = claimed.path / "attempt-1" / "stdout.log"
    if wrote:
        assert run(claimed) == "ran 1"
        output.write_text("the first start was here")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    monkeypatch.setenv("ASSAY_EARLIER", "NODE_FAIL|0:0|n2")
    assert run(claimed) == ("ran 2" if wrote else "ran 1")
    first, *_ = RunFolder(claimed.path).attempts()
    assert first.settled == (("node_failed", "Slurm: NODE_FAIL, exit code 0:0 on n2") if wrote else None)
    assert output.read_text() == ("the first start was here" if wrote else "")


@pytest.mark.fault
@pytest.mark.parametrize(
    ("outcome", "message"),
    [("node_failed", "ran 2"), ("cancelled", "nothing left to do"), ("lost", "nothing left to do")],
)
def test_an_attempt_that_has_been_called_ended_is_not_run_although_nothing_of_it_had_started(
    claimed, monkeypatch, outcome, message
):
    """Another launch could have started the run again by now, and would not see that this job runs."""
    claimed.event("submitted", job_id="7")
    claimed.event("ended", outcome=outcome, reason="said")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert run(claimed) == message


@pytest.mark.fault
def test_a_job_that_was_taken_for_lost_before_it_started_leaves_the_run_to_the_next_attempt(claimed):
    claimed.event("submitted", job_id="42")
    claimed.event("ended", outcome="lost", reason="Slurm does not know job 42")
    assert run(claimed) == "nothing left to do"


@pytest.mark.fault
def test_on_the_second_node_of_a_job_nothing_starts(claimed, monkeypatch):
    """A site's own rules can give a job more nodes than it asks for."""
    monkeypatch.setenv("SLURM_NODEID", "1")
    assert run(claimed) == "unused task"


@pytest.mark.parametrize(
    ("runs", "processes", "variables", "place"),
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
    runs, processes, variables, place, monkeypatch
):
    for name in ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert slot_and_rank(runs, processes) == place


@pytest.mark.fault
@pytest.mark.parametrize("begun", [False, True])
def test_a_task_that_does_not_find_rank_0_records_whose_fault_that_is(root, monkeypatch, begun):
    """Slurm names the task that fails."""
    monkeypatch.setattr("runner.job.ranks.meeting.POLL_SECONDS", 0.0)
    monkeypatch.setattr("runner.job.entry.wait_for_meeting", partial(wait_for_meeting, patience_seconds=0.01))
    for name, value in {"JOB_ID": "7", "PROCID": "1", "LOCALID": "0", "NODEID": "1"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    config = RunConfig(data={"path": "x"}, device="cpu", train={"batch_size": 2}, parallel={"shard": 2})
    folder = Folder(root, plan("r1", study="tiny", config=config))
    folder.event("claimed", executor="slurm")
    (folder.path.parent / ".submitit").mkdir()
    folder.start(host="n1") if begun else (folder.path / "attempt-1").mkdir()
    for _ in range(2):
        with pytest.raises(NobodyCame):
            run(folder)
    assert [event.event for event in RunFolder(folder.path).ledger] == ["claimed", "ended"]
    outcome, reason = RunFolder(folder.path).attempt(1).settled
    sentence = "rank 0 did not publish its address within 0.01 s: no 7_0_0.meeting"
    assert (outcome, reason) == ("failed", f"{sentence}; it is on n1" if begun else sentence)


@pytest.mark.fault
@pytest.mark.parametrize(
    ("error", "ending"),
    [
        (
            socket.gaierror(-2, "Name or service not known"),
            "rank 1 on n2 cannot reach rank 0 at n1:7: [Errno -2] Name or service not known; it is on n1",
        ),
        (ConnectionRefusedError(111, "Connection refused"), None),
    ],
    ids=["unknown name", "gone"],
)
def test_a_task_whose_node_does_not_know_rank_0s_host_says_so_and_how_one_ended_is_left_to_slurm(
    root, monkeypatch, error, ending
):
    def refused(*_arguments):
        raise error

    monkeypatch.setattr("runner.job.ranks.follower.socket.create_connection", refused)
    variables = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "1", "SLURM_LOCALID": "0", "SLURM_NODEID": "1"}
    for name, value in (variables | {"SLURMD_NODENAME": "n2"}).items():
        monkeypatch.setenv(name, value)
    config = RunConfig(data={"path": "x"}, device="cpu", train={"batch_size": 2}, parallel={"shard": 2})
    folder = Folder(root, plan("r1", study="tiny", config=config))
    folder.event("claimed", executor="slurm")
    folder.start(host="n1")
    (jobs := folder.path.parent / ".submitit").mkdir()
    publish(jobs / "7_0_0.meeting", Meeting.at(1, "n1", 7))
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR2)}
    try:
        with pytest.raises(NobodyCame, match="rank 1 on n2 cannot reach rank 0"):
            run(folder)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert RunFolder(folder.path).attempt(1).settled == (ending and ("failed", ending))
