"""Tasks, nodes and GPUs of a job follow from its runs: settings that would count them otherwise are refused."""

import pytest

from runner.inputs.document import InvalidFile
from runner.inputs.profile import read_cluster

TASKS = ("nodes", "ntasks", "ntasks-per-node", "ntasks_per_n", "ntasks-per-gpu", "tasks-per-node")
GPUS = ("gpus", "gpus-per-node", "gpus-per-task", "gpus_per_socket")
WORDS = ("--ntasks=2", "--ntasks", "-n2", "-N", "--nodes=2", "--gpus-per-task=2", "--gpus=4", "-G4")


@pytest.fixture
def read(tmp_path):
    """Reads a profile of these lines."""

    def profile(*lines):
        (path := tmp_path / "c.yaml").write_text("\n".join(["executor: slurm", *lines, ""]))
        return read_cluster(str(path)).profile

    return profile


@pytest.fixture
def refused(read):
    """What is said about a profile of these lines."""

    def message(*lines):
        with pytest.raises(InvalidFile) as error:
            read(*lines)
        return str(error.value)

    return message


@pytest.mark.refused
@pytest.mark.parametrize(
    ("option", "reason"),
    [
        *((name, "tasks and nodes follow from the study's `parallel`") for name in TASKS),
        *((name, "set `gpus` at the top") for name in GPUS),
    ],
)
def test_an_option_of_sbatch_that_changes_how_many_tasks_or_gpus_there_are(refused, option, reason):
    message = refused("slurm:", f"  options: {{mem: 1G, {option}: 2}}")
    assert f"c.yaml:3:22: '{option}' is not allowed" in message
    assert reason in message


@pytest.mark.refused
@pytest.mark.parametrize("word", WORDS)
def test_an_argument_of_srun_that_does(refused, word):
    assert f"c.yaml:2:33: '{word}' is not allowed" in refused(f"slurm: {{srun_args: [--mpi=pmi2, {word}]}}")


@pytest.mark.refused
@pytest.mark.parametrize("line", ["#SBATCH --nodes=2", "#BSUB -n 3", "#PBS -N x"])
def test_a_line_of_setup_that_sbatch_reads_as_an_option(refused, line):
    assert "c.yaml:2:17: " in (message := refused(f"slurm: {{setup: ['{line}']}}"))
    assert "put it under `slurm.options`" in message


@pytest.mark.refused
@pytest.mark.parametrize("gpus", [2, 8])
@pytest.mark.parametrize("keys", [[], ["gpus_per_node: 4", "slurm: {exclusive: true}"]])
def test_more_than_one_gpu(refused, gpus, keys):
    message = refused(f"gpus: {gpus}", *(keys or ["slurm: {}"]))
    assert f"c.yaml:2:1: gpus: {gpus} would leave GPUs idle" in message
    assert "and `slurm.exclusive`, or on this machine `max_parallel`" in message


@pytest.mark.refused
@pytest.mark.parametrize(
    ("gres", "count"),
    [("gres: gpu:2", 2), ("gres: 'gpu:h100:3(S:0,1)'", 3), ("gres: 'nvme:4,gpu:a:1,gpu:b'", 2)],
)
def test_gres_with_more_gpus_than_the_run_uses(refused, gres, count):
    message = refused("gpus: 1", f"slurm: {{account: a, {gres}}}")
    assert "c.yaml:3:21: " in message
    assert f"asks for {count} GPUs, but the runs of a job use 1: ask for gpu:1" in message


@pytest.mark.refused
def test_gres_with_more_gpus_than_the_runs_of_a_node_use(refused):
    node = ("gpus: 1", "gpus_per_node: 4", "max_parallel: 2")
    message = refused(*node, "slurm: {exclusive: true, options: {gres: gpu:4}}")
    assert "c.yaml:5:36: gres gpu:4 asks for 4 GPUs, but the runs of a job use 2" in message


@pytest.mark.parametrize(
    "slurm",
    [
        "{exclusive: true, gres: 'gpu:4'}",
        "{exclusive: true, srun_args: [--gpus-per-task=1, -c1], setup: ['# SBATCH', '#SBATCHES'], options: {exclude: n1, mem: 0}}",
        "{exclusive: true, srun_args: [--no-kill, --gpu-bind=none, -G1], options: {nodelist: n1, gpu-bind: none}}",
    ],
)
def test_settings_that_look_like_these_are_accepted(read, slurm):
    assert read("gpus: 1", "gpus_per_node: 4", "max_parallel: 8", f"slurm: {slurm}").runs_per_job == 4
