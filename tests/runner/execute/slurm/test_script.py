"""The batch script asks for what the processes of its runs need: nodes, tasks, GPUs, memory."""

import re
import subprocess

import pytest

from model.record.errors import UserError
from runner.execute.slurm.script import script
from runner.inputs.profile import Profile
from runner.state.attempts import JobShape
from runner.state.culprit import START

ONE = {"executor": "slurm", "cpus": 4, "gpus": 1, "gpus_per_node": 4, "memory": "3GiB", "max_parallel": 8}
ALPS = {"exclusive": True, "srun_args": ["--cpus-per-task=72", "--gpus-per-task=1", "-G1"]}


def asked(tmp_path, slurm, processes, count=4, **changes):
    """The options of the script for runs of this many processes, and its call of srun."""
    profile = Profile.model_validate({**ONE, **changes, "slurm": slurm})
    shape = JobShape(profile.memory_bytes, None, None, processes)
    text = script(profile, tmp_path / ".submitit", "study", shape, count)
    (srun,) = [line for line in text.splitlines() if line.startswith("srun ")]
    return dict(re.findall(r"^#SBATCH --([a-z-]+)=(\S+)$", text, re.MULTILINE)), srun


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
    assert "--cpus-per-task=4" in srun
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
        ({"gres": "gpu:rtx_4090:1,gpumem:24g"}, "gpu:rtx_4090:4,gpumem:24g"),
        ({"gres": "tmp:20G,gpu"}, "tmp:20G,gpu:4"),
        ({"options": {"gres": "gpu:1"}}, "gpu:4"),
    ],
)
def test_gres_asks_for_as_many_gpus_as_there_are_tasks(tmp_path, slurm, option):
    assert asked(tmp_path, slurm, 8)[0]["gres"] == option


@pytest.mark.refused
@pytest.mark.parametrize("gres", ["gpu:a100:1,gpu:h100:1", "gpu:1(S:0)"])
def test_gres_that_cannot_be_changed_is_refused(tmp_path, gres):
    with pytest.raises(UserError, match="cannot be changed to ask for 4 GPUs"):
        asked(tmp_path, {"gres": gres}, 4)


@pytest.mark.parametrize("processes", [1, 4])
def test_a_gres_that_is_no_gpu_is_asked_for_beside_the_gpus(tmp_path, processes):
    options, _ = asked(tmp_path, {"gres": "nvme:1"}, processes)
    assert (options["gres"], options["gpus-per-node"]) == ("nvme:1", str(processes))


def test_a_cluster_whose_nodes_have_gpus_that_nobody_asks_for_is_asked_for_none(tmp_path):
    """Runs that share such a node take their own of its GPUs, as Slurm gives every task all of them."""
    slurm = {"ask_gpus": False, "ask_memory": False, "exclusive": True}
    for processes, nodes in ((1, "1"), (8, "2")):
        options, srun = asked(tmp_path, slurm, processes)
        assert (options["nodes"], options["ntasks"]) == (nodes, str(4 * int(nodes)))
        assert not [name for name in options if name.startswith(("gpu", "gres", "mem"))]
        assert "gpus" not in srun
    shape = JobShape(None, None, None, 1)
    text = script(Profile.model_validate({**ONE, "slurm": slurm}), tmp_path, "study", shape, 4)
    assert "export ASSAY_SHARED_GPUS=yes" in text.splitlines()


@pytest.mark.parametrize("processes", [1, 4])
def test_how_gpus_are_bound_to_tasks_is_the_launchers_matter_where_a_job_has_several(tmp_path, processes):
    """`--gpu-bind=none` would show every run the GPU of the first one, `closest` hide GPUs from a process."""
    slurm = {
        "exclusive": True,
        "options": {"gpu-bind": "none", "hint": "nomultithread"},
        "srun_args": ["--gpu-bind=closest", "--gres=gpu:1", "--gpus-per-task=1", "--cpu-bind=cores"],
    }
    options, srun = asked(tmp_path, slurm, processes)
    assert "gpu-bind" not in options
    assert options["hint"] == "nomultithread"
    assert "--cpu-bind=cores" in srun
    assert not {"--gpu-bind=closest", "--gres=gpu:1"} & {*srun.split()}
    assert ("--gpus-per-task=1" in srun) == (processes == 1)


def test_srun_gets_the_cpus_of_the_run_and_not_those_of_another_place(tmp_path):
    """A rule of the study can change them; srun does not take them from sbatch."""
    profile = Profile.model_validate({**ONE, "slurm": {"srun_args": ["-c4", "--cpu-bind=cores"]}})
    text = script(profile, tmp_path, "study", JobShape(None, None, 1, 1), 1)
    (srun,) = [line for line in text.splitlines() if line.startswith("srun ")]
    assert "#SBATCH --cpus-per-task=1" in text.splitlines()
    assert [word for word in srun.split() if word.startswith(("-c4", "--cpus-per"))] == ["--cpus-per-task=1"]


def test_without_a_time_limit_the_partitions_holds(tmp_path):
    assert "time" not in asked(tmp_path, {}, 1)[0]
    shape = JobShape(None, 90, None, 1)
    assert "#SBATCH --time=2" in script(Profile.model_validate({**ONE, "slurm": {}}), tmp_path, "s", shape, 1)


def test_an_option_without_a_value_is_passed_without_one(tmp_path):
    profile = Profile.model_validate({**ONE, "slurm": {"options": {"contiguous": True, "comment": "a b"}}})
    lines = script(profile, tmp_path, "study", JobShape(None, None, None, 1), 1).splitlines()
    assert {"#SBATCH --contiguous", "#SBATCH --comment='a b'"} <= {*lines}


def test_a_step_has_the_jobs_variables_where_the_job_has_not_the_launchers(tmp_path):
    """With --export=NONE, srun would otherwise give Python not even PATH."""
    assert "--export=ALL" in asked(tmp_path, {"options": {"export": "NONE"}}, 1)[1]
    assert "--export" not in asked(tmp_path, {}, 1)[1]


def ran(tmp_path, setup, **environment):
    """What the batch script prints with these setup lines, on a host without Slurm; srun is a stand-in."""
    (tmp_path / "srun").write_text("#!/bin/sh\necho started\n")
    (tmp_path / "srun").chmod(0o755)
    profile = Profile.model_validate({**ONE, "slurm": {"setup": setup}})
    path = tmp_path / "script"
    path.write_text(script(profile, tmp_path, "study", JobShape(None, None, None, 1), 1))
    return subprocess.run(
        ["bash", path], capture_output=True, text=True, check=False,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "x", **environment},
    )  # fmt: skip


@pytest.mark.fault
def test_a_setup_line_that_fails_ends_the_job_with_its_text(tmp_path):
    process = ran(tmp_path, ["x=1", "module() { false; }", "module load cuda", "echo later"])
    assert (process.returncode, process.stdout) == (1, "")
    assert process.stderr.splitlines()[-1] == "slurm.setup: 'module load cuda' ended with exit code 1"


def test_setup_lines_can_be_any_shell(tmp_path):
    lines = [
        "if false; then",
        "  false",
        "fi",
        "false || x='a b'",
        "! true || true",
        "[ -e /none ] && echo no || true",
    ]
    process = ran(tmp_path, [*lines, 'echo "$x"'])
    assert (process.returncode, process.stdout) == (0, "a b\nstarted\n")


@pytest.mark.fault
def test_a_setup_that_makes_the_shell_strict_does_not_keep_the_job_from_going_on(tmp_path):
    process = ran(tmp_path, ["set -euo pipefail"])
    assert (process.returncode, process.stdout) == (0, "started\n")
    (tmp_path / "7_next.0").touch()
    (tmp_path / "srun").write_text("#!/bin/sh\nexit 9\n")
    process = subprocess.run(
        ["bash", tmp_path / "script"], capture_output=True, text=True, check=False,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "x"},
    )  # fmt: skip
    assert process.returncode == 9
    assert (tmp_path / "7_requeued.0").exists(), "it asked for a next job"


@pytest.mark.refused
def test_a_variable_that_the_job_does_not_have_ends_the_job_by_its_name(tmp_path):
    profile = Profile.model_validate({**ONE, "env": {"X": "$NOPE/a"}, "slurm": {}})
    (tmp_path / "script").write_text(script(profile, tmp_path, "study", JobShape(None, None, None, 1), 1))
    env = {"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "x"}
    process = subprocess.run(
        ["bash", tmp_path / "script"], capture_output=True, text=True, check=False, env=env
    )
    assert process.returncode
    assert process.stderr.splitlines()[-1].endswith("NOPE: is not set in the job")


@pytest.mark.parametrize(("most", "limit"), [(2, "2"), (4, ""), (8, "")])
def test_new_jobs_take_turns_only_where_fewer_may_run_at_once_than_the_array_has(tmp_path, most, limit):
    profile = Profile.model_validate({**ONE, "max_parallel": most, "slurm": {}})
    lines = script(profile, tmp_path, "study", JobShape(None, None, None, 1), 4).splitlines()
    assert f"assay_name=study assay_limit={limit}" in lines


def test_a_launch_from_inside_a_job_passes_on_nothing_of_how_that_job_runs(tmp_path):
    (tmp_path / "srun").write_text("#!/bin/sh\nenv | grep ^ASSAY_ | sort\n")
    (tmp_path / "srun").chmod(0o755)
    profile = Profile.model_validate({**ONE, "requeue": False, "slurm": {}})
    (tmp_path / "script").write_text(script(profile, tmp_path, "study", JobShape(None, None, None, 1), 1))
    of_other = dict.fromkeys(["ASSAY_AFTER", "ASSAY_REQUEUE", "ASSAY_SHARED_GPUS", "ASSAY_HOST_SUFFIX"], "x")
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "x"}
    process = subprocess.run(
        ["bash", tmp_path / "script"], capture_output=True, text=True, check=True, env=env | of_other
    )
    assert process.stdout.splitlines() == sorted(f"{name}=" for name in of_other)


def test_the_output_of_a_job_says_which_start_it_is_of(tmp_path):
    """The next start of the job writes to the same file."""
    assert f"{START}3" in ran(tmp_path, [], SLURM_RESTART_COUNT="3").stderr.splitlines()


def test_processes_without_gpus_are_tasks_too(tmp_path):
    cpus = {"gpus": 0, "gpus_per_node": None, "processes_per_node": 2}
    options, _ = asked(tmp_path, {}, 4, **cpus)
    assert (options["nodes"], options["ntasks-per-node"]) == ("2", "2")
    assert "gpus-per-node" not in options
