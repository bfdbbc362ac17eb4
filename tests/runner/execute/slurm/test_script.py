"""The batch script asks for what the processes of its runs need: nodes, tasks, GPUs, memory."""

import re
import subprocess

import pytest

from model.errors import UserError
from runner.execute.slurm.script import script
from runner.spec.profile import Profile
from runner.state.culprit import START
from runner.state.tasks import Shape

ONE = {"executor": "slurm", "cpus": 4, "gpus": 1, "gpus_per_node": 4, "memory": "3GiB", "max_parallel": 8}
ALPS = {"exclusive": True, "srun_args": ["--cpus-per-task=72", "--gpus-per-task=1", "-G1"]}


def asked(tmp_path, slurm, processes, count=4, **changes):
    """The options of the script for runs of this many processes, and its call of srun."""
    profile = Profile.model_validate({**ONE, **changes, "slurm": slurm})
    shape = Shape(profile.memory_bytes, None, None, processes)
    text = script(profile, tmp_path / ".submitit", "study", shape, count)
    return dict(re.findall(r"^#SBATCH --([a-z-]+)=(\S+)$", text, re.MULTILINE)), text.splitlines()[-1]


@pytest.mark.parametrize(("processes", "nodes", "tasks"), [(2, 1, 2), (4, 1, 4), (6, 2, 3), (8, 2, 4)])
def test_a_run_has_a_task_for_each_process_and_a_gpu_for_each_task(tmp_path, processes, nodes, tasks):
    options, srun = asked(tmp_path, {}, processes)
    assert (options["nodes"], options["ntasks-per-node"]) == (str(nodes), str(tasks))
    assert options["gpus-per-node"] == str(tasks)
    assert (options["mem"], options["cpus-per-task"]) == (f"{3072 * tasks}M", "4")
    assert options["array"] == "0-3%4"
    assert "--kill-on-bad-exit=1 --wait=60" in srun
    assert f"--output={tmp_path}/.submitit/%A_%a_%n_log.out" in srun
    assert ("--distribution=block" in srun) == (nodes > 1)


def test_processes_of_a_run_see_all_gpus_of_their_node(tmp_path):
    """An argument that would hide them, which runs of one process need, is left out."""
    _, srun = asked(tmp_path, ALPS, 4)
    assert "--cpus-per-task=72" in srun
    assert "--gpus" not in srun
    assert "-G1" not in srun


def test_runs_that_do_not_fill_a_whole_node_share_it_without_sharing_their_fate(tmp_path):
    options, srun = asked(tmp_path, ALPS, 2, count=3)
    assert (options["nodes"], options["ntasks-per-node"], options["gpus-per-node"]) == ("1", "4", "4")
    assert options["array"] == "0-1%2"
    assert "--kill-on-bad-exit=0 --wait=0" in srun


@pytest.mark.parametrize(
    ("slurm", "option"),
    [
        ({"gres": "gpu:h100:1"}, "gpu:h100:4"),
        ({"gres": "gpu"}, "gpu:4"),
        ({"gres": "gres:gpu:1"}, "gpu:4"),
        ({"options": {"gres": "gpu:1"}}, "gpu:4"),
    ],
)
def test_gres_asks_for_as_many_gpus_as_there_are_tasks(tmp_path, slurm, option):
    assert asked(tmp_path, slurm, 8)[0]["gres"] == option


@pytest.mark.refused
@pytest.mark.parametrize("gres", ["nvme:1", "gpu:1,nvme:1", "gpu:1(S:0)"])
def test_gres_that_cannot_be_changed_is_refused(tmp_path, gres):
    with pytest.raises(UserError, match="cannot be changed to ask for 4 GPUs"):
        asked(tmp_path, {"gres": gres}, 4)


@pytest.mark.parametrize("processes", [1, 2])
def test_the_output_of_a_job_of_several_processes_says_which_start_it_is_of(tmp_path, processes):
    """The next start of the job writes to the same file."""
    shape = Shape(None, None, None, processes)
    text = script(Profile.model_validate({**ONE, "slurm": {}}), tmp_path, "study", shape, 1)
    done = subprocess.run(
        ["bash", "-c", "\n".join(line for line in text.splitlines() if START in line and line.startswith("echo"))],
        env={"SLURM_RESTART_COUNT": "3"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stderr == ("" if processes == 1 else f"{START}3\n")


def test_processes_without_gpus_are_tasks_too(tmp_path):
    cpus = {"gpus": 0, "gpus_per_node": None, "processes_per_node": 2}
    options, _ = asked(tmp_path, {}, 4, **cpus)
    assert (options["nodes"], options["ntasks-per-node"]) == ("2", "2")
    assert "gpus-per-node" not in options
