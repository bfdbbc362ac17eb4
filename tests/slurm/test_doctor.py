"""`runner doctor` on a login node: what a real Slurm says to a profile, without a job."""

import json
import os
import subprocess

import pytest

from tests.conftest import started_cluster
from tests.slurm.test_cluster import SANDBOX

pytestmark = pytest.mark.slurm
CONFIGURATION = """\
AccountingStorageEnforce=associations,limits,qos
PartitionName=narrow Nodes=n[1-2] MaxNodes=1
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A cluster that holds users to their accounts, and to five minutes with the QoS `small`."""
    with started_cluster(tmp_path_factory.mktemp("limited"), CONFIGURATION) as reach:
        for command in (
            "add qos small set MaxWall=5 flags=DenyOnLimit",
            "modify user root set qos=normal,small",
        ):
            subprocess.run(["sacctmgr", "-i", *command.split()], env={**os.environ, **reach}, check=True)
        yield reach


@pytest.fixture
def doctor(runner, cluster, tmp_path):
    """The checks of a profile with these keys more, by name, and the exit code."""

    def ask(slurm="", more="", partition="debug"):
        text = (
            SANDBOX.read_text().replace("3GiB", "1GiB").replace("partition: debug", f"partition: {partition}")
        )
        (path := tmp_path / "limited.yaml").write_text(f"{more}{text}{slurm}")
        process = runner("doctor", "--profile", path, "--json", **cluster)
        return {check["what"]: check for check in json.loads(process.stdout)}, process.returncode

    return ask


def test_each_kind_of_job_of_a_profile_is_tried_and_none_is_submitted(doctor, cluster, root):
    debug = "debug: {qos: small, time_limit: 0:05:00}\nprocesses_per_node: 2\n"
    checks, code = doctor("  account: root\n  qos: normal\n", debug)
    assert code == 0, checks
    assert checks["job"]["found"].endswith("0:10:00 on 1 node, partition debug, account root, qos normal")
    assert "on 1 node" in checks["job of 2 processes"]["found"]
    assert "on 2 nodes" in checks["job of 4 processes"]["found"]
    assert "0:05:00" in checks["rehearsal"]["found"] and "qos small" in checks["rehearsal"]["found"]
    queue = subprocess.run(["squeue", "-h"], env={**os.environ, **cluster}, capture_output=True, check=True)
    assert queue.stdout == b""
    assert not root.exists()


@pytest.mark.refused
@pytest.mark.parametrize(
    ("slurm", "more", "check", "finding"),
    [
        ("  account: nope\n", "", "job", "Invalid account or account/partition combination"),
        ("  qos: nope\n", "", "job", "Invalid qos"),
        ("  qos: small\n", "", "job", "0:10:00 is above the 00:05:00 with QoS small"),
        ("  constraint: nope\n", "", "job", "Invalid feature"),
        ("", "debug: {partition: nope}\n", "rehearsal", "invalid partition specified: nope"),
        ("  account: your-project\n", "", "to fill in", "put your own project in place of your-project"),
        ("", "python: /no/such/python\n", "job's python", "/no/such/python is no program here"),
    ],
)
def test_what_will_not_work_is_named_and_ends_with_1(doctor, slurm, more, check, finding):
    checks, code = doctor(slurm, more)
    assert code == 1
    assert finding in checks[check]["found"]
    assert (checks[check]["works"], checks[check]["needed"]) == (False, True)


def test_a_run_of_more_nodes_than_the_partition_gives_a_job_is_said_and_fails_nothing(doctor):
    checks, code = doctor("", "processes_per_node: 2\n", partition="narrow")
    assert checks["job of 2 processes"]["works"]
    assert not checks["job of 4 processes"]["works"]
    assert code == 0
