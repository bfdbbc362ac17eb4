"""What sbatch is given, whatever its user's environment and the cluster's settings say."""

import os
from dataclasses import replace

import pytest

from model.record.folder import RunFolder
from runner.execute.slurm.submit import submit
from runner.inputs.profile import Profile
from runner.state import ledger, slurm
from runner.state.attempts import JobShape, NextAttempt, jobs_folder
from tests.analysis.fabricate import Folder, plan

POLLUTED = {
    "SBATCH_JOB_NAME": "mine", "SBATCH_TIMELIMIT": "1", "SBATCH_ARRAY_INX": "0-9", "SBATCH_EXPORT": "NONE",
    "SQUEUE_STATES": "PENDING", "SQUEUE_FORMAT": "%j", "SACCT_FORMAT": "JobName", "SCANCEL_STATE": "PENDING",
    "SLURM_TIME_FORMAT": "relative", "SLURM_CLUSTERS": "other", "SLURM_BITSTR_LEN": "8", "SRUN_CPUS_PER_TASK": "9",
    "SLURM_MEM_PER_CPU": "1G", "SLURM_JOB_ID": "3", "SLURM_NTASKS": "8", "SALLOC_PARTITION": "x",
}  # fmt: skip
REACH = {"SLURM_CONF": "/etc/slurm/other.conf", "SLURM_JWT": "secret", "SLURMISH": "stays"}


@pytest.fixture
def heard(tmp_path, monkeypatch):
    """An environment full of Slurm's variables; reads the one that a stand-in command was called with."""
    for name, value in (POLLUTED | REACH).items():
        monkeypatch.setenv(name, value)
    return lambda: dict(line.split("=", 1) for line in (tmp_path / "env").read_text().splitlines())


@pytest.fixture
def tasks(root):
    """Attempts to submit."""

    def make(count):
        folders = [RunFolder(Folder(root, plan(f"r{number}", study="tiny")).path) for number in range(count)]
        return [NextAttempt(folder, 1, "a label", 5, JobShape(None, 60, 1)) for folder in folders]

    return make


@pytest.fixture
def sbatch(says, tmp_path):
    """Stand-ins with which arrays can be submitted; MaxArraySize as given."""

    def make(array_size):
        says("srun")
        says("scontrol", f"MaxArraySize = {array_size}")
        says("sbatch", "Submitted batch job 7", also=f"/usr/bin/env >{tmp_path}/env")
        return Profile.model_validate({"executor": "slurm", "slurm": {}})

    return make


def test_nodes_and_jobs_that_the_profile_names_are_added_to_the_launchers(sbatch, tasks, root):
    sbatch(1001)
    options = {"exclude": "n9", "dependency": "singleton"}
    profile = Profile.model_validate({"executor": "slurm", "slurm": {"options": options}})
    one, other = tasks(2)
    submit(
        [one, replace(other, shape=JobShape(None, 120, 1))],
        profile,
        jobs_folder(root / "tiny"),
        "tiny",
        ["n2", "n1"],
    )
    scripts = sorted(jobs_folder(root / "tiny").glob("*.sh"), key=lambda path: "afterany" in path.read_text())
    assert "#SBATCH --exclude=n9,n1,n2" in scripts[0].read_text().splitlines()
    assert "#SBATCH --dependency=singleton,afterany:7" in scripts[-1].read_text().splitlines()


@pytest.mark.fault
def test_sbatch_and_so_the_job_get_no_option_from_the_environment(sbatch, tasks, root, heard):
    profile, variables = sbatch(1001), dict(os.environ)
    (task,) = tasks(1)
    submit([task], profile, jobs_folder(root / "tiny"), "tiny")
    assert not set(POLLUTED) & set(heard())
    assert heard().items() >= REACH.items()
    assert dict(os.environ) == variables
    assert ledger.state(task.folder).job_id == "7"


@pytest.mark.fault
def test_sbatch_reads_a_script_that_nobody_can_replace_with_the_folder(says, sbatch, tasks, root, tmp_path):
    """Others may put another folder in its place while sbatch starts, and there the script has the same name."""
    profile = sbatch(1001)
    replace = f"PATH=/usr/bin:/bin; shift; mv {root} {tmp_path}/away; mkdir -p {jobs_folder(root / 'tiny')}; echo planted >{root}/tiny/.submitit"
    also = (
        f'{replace}/$(basename "$1"); stat -c %a "$(dirname "$1")" >{tmp_path}/mode; cp "$1" {tmp_path}/read'
    )
    says("sbatch", "Submitted batch job 7", also=f"{also}; rm -r {root}; mv {tmp_path}/away {root}")
    (task,) = tasks(1)
    submit([task], profile, jobs_folder(root / "tiny"), "tiny")
    assert f"runs=({task.folder.path.name}/1)" in (tmp_path / "read").read_text()
    assert (tmp_path / "mode").read_text() == "700\n"
    call = next(line for line in (tmp_path / "asked").read_text().splitlines() if line.startswith("sbatch"))
    array = ledger.state(task.folder).event("intent").submission
    assert f"--job-name={array}" in call.split(), "by which a later command knows whose an sbatch is"


@pytest.mark.fault
@pytest.mark.parametrize("command", ["sacct", "squeue", "scontrol", "scancel"])
def test_every_other_command_of_slurm_gets_none_either(says, heard, tmp_path, command):
    says(command, also=f"/usr/bin/env >{tmp_path}/env")
    slurm.ask(command)
    assert set(POLLUTED) & set(heard()) == {"SLURM_BITSTR_LEN"}
    assert heard()["SLURM_BITSTR_LEN"] == "0", "so that lists of array elements are complete"
    assert heard().items() >= REACH.items()


@pytest.mark.fault
def test_where_arrays_are_off_each_run_is_submitted_alone(sbatch, tasks, root, tmp_path):
    profile, three = sbatch(0), tasks(3)
    submit(three, profile, jobs_folder(root / "tiny"), "tiny")
    calls = (tmp_path / "asked").read_text()
    assert calls.count("sbatch") == 3
    assert all(ledger.state(task.folder).event("intent").count == 1 for task in three)


def test_runs_of_two_processes_share_jobs_by_two_where_runs_of_one_do_by_four(says, tasks, root):
    says("srun")
    says("scontrol", "MaxArraySize = 1001")
    says("sbatch", "Submitted batch job 7")
    keys = {
        "executor": "slurm",
        "gpus": 1,
        "gpus_per_node": 4,
        "max_parallel": 8,
        "slurm": {"exclusive": True},
    }
    every = tasks(8)
    pairs = [replace(task, shape=replace(task.shape, processes=2)) for task in every[5:]]
    submit([*every[:5], *pairs], Profile.model_validate(keys), jobs_folder(root / "tiny"), "tiny")
    intents = [ledger.state(task.folder).event("intent") for task in every]
    assert [(event.index, event.slot) for event in intents[:5]] == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0)]
    assert [(event.index, event.slot) for event in intents[5:]] == [(0, 0), (0, 1), (1, 0)]
