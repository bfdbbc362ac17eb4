"""srun says which task ended first: the run's own words name its rank and node."""

import pytest

from model.config import DataConfig, ParallelConfig, RunConfig, TrainConfig
from model.disk.folder import RunFolder
from model.disk.record import Outcome
from runner.execute.slurm.culprit import named
from runner.state import ledger
from runner.state.endings import Ending
from runner.state.tasks import jobs_folder
from tests.analysis.fabricate import LLAMA, Folder, plan

SLURM = "Slurm: FAILED, exit code 9:0 on n[1-2]"
KILLED = "srun: error: n1: task 0: Killed\nsrun: Force Terminated StepId=7.0\n"


@pytest.fixture
def job(root):
    """What becomes of a reason, by what job 7 printed; the run of so many processes has a slot in it."""

    def ended(printed, processes=2, slot=0, outcome=Outcome.FAILED):
        shared = RunConfig(
            attention="auto",
            model=LLAMA,
            data=DataConfig(path="train.parquet"),
            train=TrainConfig(batch_size=2),
            parallel=ParallelConfig(shard=processes),
        )
        folder = Folder(root, plan("r1", study="tiny", config=shared))
        folder.event("claimed", executor="slurm")
        folder.event("intent", submission="tiny-1", index=0, count=1, slot=slot)
        folder.event("submitted", executor="slurm", job_id="7")
        (folder.path / "attempt-1").mkdir()
        if printed is not None:
            (path := jobs_folder(root / "tiny") / "7_0_log.err").parent.mkdir()
            path.write_text(printed)
        return named(Ending(outcome, SLURM), ledger.state(RunFolder(folder.path))).reason

    return ended


@pytest.mark.fault
@pytest.mark.parametrize(
    ("printed", "slot", "said"),
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
def test_the_process_that_ended_first_is_named_beside_what_slurm_says(job, printed, slot, said):
    assert job(printed, slot=slot) == (f"{said} ({SLURM})" if said else SLURM)


def test_a_run_of_one_process_and_a_job_that_lost_its_node_are_as_slurm_says(job):
    assert job(KILLED, processes=1) == SLURM


def test_a_lost_node_is_no_end_of_one_process(job):
    assert job(KILLED, outcome=Outcome.NODE_FAILED) == SLURM
