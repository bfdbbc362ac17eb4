"""What a state of Slurm's means for a run."""

import pytest

from runner.state.slurm import ALIVE, ending_of_job


@pytest.mark.parametrize(
    ("state", "outcome"),
    [
        ("COMPLETED", "lost"), ("FAILED", "failed"), ("TIMEOUT", "timeout"), ("OUT_OF_MEMORY", "oom_host"),
        ("CANCELLED by 1000", "cancelled"), ("CANCELLED+", "cancelled"), ("PREEMPTED", "preempted"),
        ("NODE_FAIL", "node_failed"), ("BOOT_FAIL", "node_failed"), ("DEADLINE", "timeout"),
        ("SOMETHING_NEW", "lost"), ("", "lost"),
    ],
)  # fmt: skip
def test_every_final_slurm_state_has_its_outcome(state, outcome):
    assert ending_of_job(state, "0:0").outcome == outcome


@pytest.mark.parametrize("state", sorted(ALIVE))
def test_a_slurm_job_that_lives_has_no_outcome(state):
    assert ending_of_job(state, "0:0") is None


@pytest.mark.parametrize(
    ("state", "node", "failed"),
    [
        ("NODE_FAIL", "n2", ("n2",)),
        ("BOOT_FAIL", "nid-0001.cluster", ("nid-0001.cluster",)),
        ("NODE_FAIL", "n[1-2]", ()),
        ("NODE_FAIL", "n1,n2", ()),
        ("NODE_FAIL", "None assigned", ()),
        ("PREEMPTED", "n2", ()),
    ],
)
def test_the_only_node_of_a_job_that_a_node_ended_has_failed_and_of_several_none_is_accused(
    state, node, failed
):
    assert ending_of_job(state, "0:0", node).failed_nodes == failed
