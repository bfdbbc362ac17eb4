"""A job of a real Slurm cluster has a task for each process of its runs, evenly over its nodes."""

import pytest

from model.record.folder import RunFolder
from runner.execute.slurm.submit import submit
from runner.inputs.profile import Profile
from runner.state.attempts import JobShape, NextAttempt, jobs_folder
from tests.analysis.fabricate import Folder, plan
from tests.conftest import until

pytestmark = pytest.mark.slurm
# Stands in for the processes of a run: each says where it is.
SAYS = """#!/bin/sh
said="$SLURM_NNODES $SLURM_NTASKS $SLURM_NODEID $SLURM_LOCALID $CUDA_VISIBLE_DEVICES $SLURM_MEM_PER_NODE"
echo "$said" > "$SAID/.$SLURM_JOB_ID-$SLURM_PROCID" && mv "$SAID/.$SLURM_JOB_ID-$SLURM_PROCID" "$SAID/$SLURM_JOB_ID-$SLURM_PROCID"
"""


@pytest.fixture
def said(cluster, root, tmp_path, monkeypatch):
    """What each process of jobs says: nodes, tasks, node, place on the node, GPUs, memory; by job and rank."""
    for name, value in cluster.items():
        monkeypatch.setenv(name, value)
    (python := tmp_path / "python").write_text(SAYS)
    python.chmod(0o755)
    (reports := tmp_path / "said").mkdir()

    def jobs(runs, processes, tasks, **slurm):
        keys = {"gpus": 1, "gpus_per_node": 2, "memory": "1GiB", "max_parallel": 4, "python": str(python)}
        fields = {"env": {"SAID": str(reports)}, "slurm": {"partition": "debug", **slurm}}
        profile = Profile.model_validate({"executor": "slurm", **keys, **fields})
        folders = [RunFolder(Folder(root, plan(f"r{number}", study="tiny")).path) for number in range(runs)]
        shape = JobShape(profile.memory_bytes, 600, 1, processes)
        submit(
            [NextAttempt(folder, 1, "", 5, shape) for folder in folders],
            profile,
            jobs_folder(root / "tiny"),
            "tiny",
        )
        until(lambda: len([*reports.glob("[0-9]*")]) == tasks)
        ranked = sorted(reports.glob("[0-9]*"), key=lambda path: tuple(map(int, path.name.split("-"))))
        return [path.read_text().split() for path in ranked]

    return jobs


def test_four_processes_are_two_on_each_of_two_nodes_and_see_both_of_its_gpus(said, root):
    tasks = said(1, 4, 4)
    assert [words[:4] for words in tasks] == [
        ["2", "4", "0", "0"],
        ["2", "4", "0", "1"],
        ["2", "4", "1", "0"],
        ["2", "4", "1", "1"],
    ], "ranks next to each other share a node"
    assert {words[4] for words in tasks} == {"0,1"}
    assert {words[5] for words in tasks} == {"2048"}
    logs = [path.name.partition("_")[2] for path in (root / "tiny" / ".submitit").glob("*_log.out")]
    assert sorted(logs) == ["0_log.out", "1_log.out"], "one a node"


def test_two_processes_fill_a_node_that_is_allocated_whole(said):
    tasks = said(2, 2, 4, exclusive=True, srun_args=["--gpus-per-task=1"])
    assert [words[:2] for words in tasks] == [["1", "2"]] * 4
    assert {words[4] for words in tasks} == {"0,1"}, "they see each other's"
