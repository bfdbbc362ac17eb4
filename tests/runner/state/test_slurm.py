"""What a state of Slurm's means for a run."""

import pytest

from runner.state.slurm import ALIVE, ending_of


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
    assert ending_of(state, "0:0").outcome == outcome


@pytest.mark.parametrize("state", sorted(ALIVE))
def test_a_slurm_job_that_lives_has_no_outcome(state):
    assert ending_of(state, "0:0") is None
