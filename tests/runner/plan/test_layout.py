"""Processes of a run lie evenly on nodes, and a number of them that a profile cannot give is refused."""

import pytest

from model.record.errors import UserError
from runner.inputs.document import InvalidFile
from runner.inputs.profile import Profile, read_cluster
from runner.plan.layout import Layout, layout

SHARED = {"executor": "slurm", "gpus": 1, "gpus_per_node": 4, "max_parallel": 8, "slurm": {}}
WHOLE = {**SHARED, "slurm": {"exclusive": True}}
CPUS = {"executor": "slurm", "processes_per_node": 4, "slurm": {}}


def laid(profile, processes):
    return layout(Profile.model_validate(profile), processes)


@pytest.mark.parametrize(
    ("profile", "processes", "nodes", "runs", "per_node"),
    [
        (SHARED, 1, 1, 1, 1),
        (SHARED, 3, 1, 1, 3),
        (SHARED, 4, 1, 1, 4),
        (SHARED, 6, 2, 1, 3),
        (SHARED, 8, 2, 1, 4),
        (SHARED, 64, 16, 1, 4),
        (WHOLE, 1, 1, 4, 4),
        (WHOLE, 2, 1, 2, 4),
        (WHOLE, 4, 1, 1, 4),
        (WHOLE, 8, 2, 1, 4),
        ({**WHOLE, "max_parallel": 1}, 2, 1, 1, 2),
        (CPUS, 4, 1, 1, 4),
        (CPUS, 8, 2, 1, 4),
        ({**CPUS, "slurm": {"exclusive": True}}, 2, 1, 1, 2),
        ({"executor": "local"}, 8, 1, 1, 8),
        ({"executor": "local", "processes_per_node": 16}, 16, 1, 1, 16),
        ({"executor": "local", "gpus": 1}, 16, 1, 1, 16),
    ],
)
def test_processes_fill_as_few_nodes_as_they_can(profile, processes, nodes, runs, per_node):
    result = laid(profile, processes)
    assert result == Layout(processes, nodes, runs)
    assert result.per_node == per_node


@pytest.mark.refused
@pytest.mark.parametrize(
    ("profile", "processes", "message"),
    [
        ({**SHARED, "gpus_per_node": None}, 2, "2 processes need a profile that sets `gpus_per_node`"),
        ({**CPUS, "processes_per_node": None}, 2, "need a profile that sets `processes_per_node`"),
        (SHARED, 5, "do not divide evenly over 2 nodes, since `gpus_per_node` is 4: use 4 or 6"),
        (SHARED, 10, "do not divide evenly over 3 nodes, since `gpus_per_node` is 4: use 9 or 12"),
        (SHARED, 2**120 + 1, "nodes, since `gpus_per_node` is 4: use"),
        (WHOLE, 3, "slots idle, since `gpus_per_node` is 4: use 2 or 4"),
        (WHOLE, 6, "slots idle, since `gpus_per_node` is 4: use 4 or 8"),
        (CPUS, 7, "since `processes_per_node` is 4: use 6 or 8"),
        ({"executor": "local"}, 9, "too many for this machine, since `processes_per_node` is 8"),
        (
            {"executor": "local", "gpus": 1, "gpus_per_node": 2},
            4,
            "too many for this machine, since `gpus_per_node` is 2: use 2 or fewer",
        ),
    ],
)
def test_a_number_of_processes_that_a_profile_cannot_give_is_refused_by_its_key(profile, processes, message):
    with pytest.raises(UserError, match=message):
        laid(profile, processes)


@pytest.mark.refused
def test_processes_of_a_node_with_gpus_are_its_gpus(tmp_path):
    (path := tmp_path / "c.yaml").write_text("executor: slurm\ngpus: 1\nprocesses_per_node: 2\nslurm: {}\n")
    with pytest.raises(InvalidFile, match=r"c\.yaml:3:1: `processes_per_node` is for runs without GPUs"):
        read_cluster(str(path))
