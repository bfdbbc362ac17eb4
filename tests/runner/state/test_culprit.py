"""Of an attempt that Slurm says has ended: what it said itself, and the rank and node that srun names."""

import tempfile
from pathlib import Path

import pytest

from model.record.config import DataConfig, ParallelConfig, RunConfig, TrainConfig
from model.record.folder import RunFolder
from model.record.outcome import Outcome
from runner.state import slurm
from runner.state.attempts import jobs_folder
from runner.state.culprit import START, actual_ending
from runner.state.endings import Ending
from tests.analysis.fabricate import LLAMA, Folder, plan
from tests.analysis.fabricate import START as BEGAN

SLURM = "Slurm: FAILED, exit code 9:0 on n[1-2]"
KILLED = "srun: error: n1: task 0: Killed\nsrun: Force Terminated StepId=7.0\n"


@pytest.fixture
def job(tmp_path):
    """What is true of the attempt of job 7, by what that printed; the run of so many processes has a slot in it."""

    def ended(
        printed,
        processes=2,
        slot=0,
        outcome=Outcome.FAILED,
        restarts=0,
        own=None,
        nodes="",
        stderr="",
        slurm=SLURM,
    ):
        shared = RunConfig(
            attention="auto",
            model=LLAMA,
            data=DataConfig(path="train.parquet"),
            train=TrainConfig(batch_size=2),
            parallel=ParallelConfig(shard=processes),
        )
        root = Path(tempfile.mkdtemp(dir=tmp_path))
        folder = Folder(root, plan("r1", study="tiny", config=shared))
        folder.event("claimed", executor="slurm")
        folder.event("intent", submission="tiny-1", index=0, count=1, slot=slot)
        for attempt in range(1, restarts + 2):
            folder.event("submitted", attempt, executor="slurm", job_id="7")
            folder.start(attempt, slurm={"SLURM_RESTART_COUNT": f"{attempt - 1}"} if attempt > 1 else {})
            (folder.path / f"attempt-{attempt}" / "stderr.log").write_text(stderr)
        if own:
            folder.end("cancelled", restarts + 1, reason=own)
        if printed is not None:
            (path := jobs_folder(root / "tiny") / "7_0_log.err").parent.mkdir()
            path.write_text(printed)
        ending = actual_ending(Ending(outcome, slurm, nodes=nodes), RunFolder(folder.path), restarts + 1)
        if ending.outcome is not outcome:
            return ending.outcome, ending.reason
        return (ending.reason, *ending.failed_nodes) if ending.failed_nodes else ending.reason

    return ended


@pytest.mark.fault
@pytest.mark.parametrize(
    ("printed", "slot", "culprit"),
    [
        (KILLED, 0, "rank 0 on n1: killed by SIGKILL"),
        (
            "starts\nsrun: error: n2: task 1: Segmentation fault (core dumped)\n" + KILLED,
            0,
            "rank 1 on n2: killed by SIGSEGV",
        ),
        ("srun: error: n1: tasks 0-1: Exited with exit code 1\n", 0, "rank 0 on n1: exited with exit code 1"),
        ("srun: error: n3: tasks 2,5: Out Of Memory\n", 0, None),
        (KILLED + "srun: error: n1: tasks 1,3: Killed\n", 1, "rank 1 on n1: killed by SIGKILL"),
        ("", 0, None),
        (None, 0, None),
    ],
    ids=[
        "rank 0",
        "another first",
        "several",
        "no task of it",
        "of the second run of a job",
        "nothing",
        "no file",
    ],
)
def test_the_process_that_ended_first_is_named_beside_what_slurm_says(job, printed, slot, culprit):
    assert job(printed, slot=slot) == (f"{culprit} ({SLURM})" if culprit else SLURM)


def test_a_run_of_one_process_and_a_job_that_lost_its_node_are_as_slurm_says(job):
    assert job(KILLED, processes=1) == SLURM


@pytest.mark.fault
def test_a_run_whose_last_words_are_that_memory_ran_out_is_out_of_memory_and_not_failed(job):
    message = "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n"
    for code in ("0:6", "134:0"):
        slurm = f"Slurm: FAILED, exit code {code}"
        aborted = (Outcome.OOM_HOST, f"out of host memory, and aborted ({slurm})")
        assert job(KILLED, processes=1, stderr=message, slurm=slurm) == aborted
    assert job(KILLED, processes=1, stderr=message, slurm="Slurm: FAILED, exit code 1:0").startswith("Slurm")
    assert job(KILLED, processes=1, stderr=message, own="received SIGTERM")[0] is Outcome.CANCELLED


def test_a_lost_node_is_no_end_of_one_process_and_is_named_where_srun_names_it(job):
    assert job(KILLED, outcome=Outcome.NODE_FAILED) == SLURM
    lost = f"srun: error: Node failure on n2\n{KILLED}"
    ending = f"node failure on n2 ({SLURM})", "n2"
    assert job(lost, outcome=Outcome.NODE_FAILED, own="received SIGTERM") == ending
    stderr = "srun: error: Node failure on n2\nsrun: error: Node failure on n1\n"
    assert job(stderr, outcome=Outcome.NODE_FAILED) == (f"node failure on n2, n1 ({SLURM})", "n2", "n1")


@pytest.mark.fault
def test_a_lost_node_that_srun_could_not_name_is_named_as_slurm_recorded_it(job, monkeypatch):
    """Srun is gone with the node of rank 0."""
    failures = {("n[1-2]", BEGAN): ["n1"]}
    monkeypatch.setattr(slurm, "failed_nodes", lambda *query: failures.get(query, []))
    assert job("", outcome=Outcome.NODE_FAILED, nodes="n[1-2]") == (f"node failure on n1 ({SLURM})", "n1")
    assert job("", outcome=Outcome.NODE_FAILED, nodes="n[3-4]") == SLURM
    assert job("", outcome=Outcome.FAILED, nodes="n[1-2]") == SLURM


@pytest.mark.fault
def test_what_a_job_printed_before_it_started_again_says_nothing_of_the_next_attempt(job):
    before = f"{START}0\nsrun: error: n2: task 3: Killed\n{START}1\n"
    assert job(before, slot=1, restarts=1) == SLURM
    after = f"{before}srun: error: n3: task 2: Aborted\n"
    reason = f"rank 0 on n3: killed by SIGABRT ({SLURM})"
    assert job(after, slot=1, restarts=1) == reason, "the slot was noted with the first attempt alone"
    assert job(f"{after}{START}2\n", slot=1, restarts=1) == reason, "after the next start, too"


SAVED = "received SIGTERM; a checkpoint was saved at step 7"


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("outcome", [Outcome.PREEMPTED, Outcome.TIMEOUT])
def test_why_an_attempt_was_stopped_slurm_knows_and_what_it_saved_the_attempt(job, processes, outcome):
    assert job("", processes, outcome=outcome, own=SAVED) == f"{SAVED} ({SLURM})"


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.LOST])
def test_an_attempt_that_said_how_it_ended_did_not_fail_by_its_exit_code(job, processes, outcome):
    """Rank 0 ends with exit code 1 where it is told to stop, and another process hangs."""
    printed = "srun: error: n1: task 0: Exited with exit code 1\n"
    assert job(printed, processes, outcome=outcome, own=SAVED) == (Outcome.CANCELLED, SAVED)
