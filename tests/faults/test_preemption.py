"""Jobs of another partition come first, on a real cluster: runs that make room are preempted, and go on."""

import json

import pytest

from model.record.folder import RunFolder
from tests.conftest import PACED, PATIENCE_SECONDS, started_cluster, until
from tests.faults.daemons import Daemons
from tests.faults.test_processes import LONGER, ONE_RUN, TWO, trains
from tests.slurm.test_cluster import SANDBOX

pytestmark = pytest.mark.slurm
PARTITIONS = """\
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=first Nodes=ALL PriorityTier=10 PreemptMode=off
PartitionName=requeues Nodes=ALL PriorityTier=1 PreemptMode=REQUEUE
PartitionName=cancels Nodes=ALL PriorityTier=1 PreemptMode=CANCEL
PartitionName=waits Nodes=ALL PriorityTier=1 PreemptMode=CANCEL GraceTime=60
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with started_cluster(tmp_path_factory.mktemp("preempting"), PARTITIONS) as reach:
        yield reach


@pytest.fixture
def comes_first(cluster):
    """Submits a job that takes all nodes for some seconds; none is left behind."""
    daemons = Daemons(cluster)
    command = ["sbatch", "-p", "first", "--exclusive", "-N4", "--mem=0", "-o", "/dev/null", "--wrap"]
    yield lambda: daemons.ask(*command, "sleep 4")
    until(lambda: not daemons.ask("squeue", "-h"))


@pytest.fixture
def profile(tmp_path):
    def write(partition, more=""):
        text = SANDBOX.read_text().replace("partition: debug", f"partition: {partition}")
        assert f"partition: {partition}" in text
        more = f"memory: 1GiB\nprocesses_per_node: 1\n{more}"
        (path := tmp_path / "preempted.yaml").write_text(text.replace("memory: 3GiB", more))
        return path

    return write


def tried(attempt):
    """How each attempt ended, and at which step the second began."""
    attempts = RunFolder(attempt.parent).attempts()
    return [record.settled[0] for record in attempts], attempts[1].manifest.resumed_step


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize(
    ("partition", "more"), [("requeues", ""), ("waits", ""), ("waits", "requeue: false")]
)
def test_a_run_that_makes_room_for_another_job_goes_on_by_itself(
    slurm, study, root, rows, profile, comes_first, partition, more, processes, hurry
):
    """Within its GraceTime Slurm only sends SIGTERM: it takes a job that then ends for completed."""
    path = study(ONE_RUN, base=TWO) if processes == 2 else study(ONE_RUN)
    slurm("launch", path, "--profile", profile(partition, more), *LONGER, rc=0)
    first, attempt = trains(root)
    comes_first()
    first.wait(PATIENCE_SECONDS)
    hurry()
    until(lambda: rows()[0]["outcome"] == "completed")
    outcomes, resumed = tried(attempt)
    assert outcomes == ["preempted", "completed"]
    assert resumed == json.loads((attempt / "result.json").read_text())["steps"]


@pytest.mark.parametrize(
    ("partition", "more"), [("cancels", ""), ("requeues", "requeue: false"), ("waits", "chain: false")]
)
def test_a_launch_that_waits_retries_a_run_that_was_preempted_and_is_not_requeued(
    background, study, root, profile, comes_first, cluster, tmp_path, partition, more, hurry
):
    words = ["launch", study(ONE_RUN), "--profile", profile(partition, more), "--wait", *LONGER]
    launcher = background("runner", "--root", root, *words, cwd=tmp_path, **cluster, **PACED)
    first, attempt = trains(root)
    comes_first()
    first.wait(PATIENCE_SECONDS)
    hurry()
    _, stderr = launcher.communicate(PATIENCE_SECONDS)
    assert launcher.returncode == 0, stderr
    assert tried(attempt)[0] == ["preempted", "completed"]
    assert "attempt 1 ended as preempted; retrying" in stderr
