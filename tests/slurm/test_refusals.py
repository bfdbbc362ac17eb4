"""What a real cluster with accounts and QoS refuses, lets wait for ever, or forgets, and what is told about it."""

import re
import subprocess
from datetime import timedelta

import pytest

from runner.execute import reconcile
from tests.conftest import PACED, started_cluster, until
from tests.faults.daemons import Daemons
from tests.faults.test_launcher import stand_in
from tests.slurm.test_cluster import training

pytestmark = pytest.mark.slurm
# Three partitions of the same nodes, and limits that accounting enforces.
EXTRA = """\
AccountingStorageEnforce=limits,qos
PartitionName=hour Nodes=ALL MaxTime=1:00:00 OverSubscribe=FORCE:4
PartitionName=minutes Nodes=ALL MaxTime=5:00 OverSubscribe=FORCE:4
"""
ACCOUNTS = (
    "add account course",
    "add qos strict set MaxWall=00:20:00 MaxSubmitJobsPerUser=2 Flags=DenyOnLimit",
    "add qos lax set MaxTRESPerJob=cpu=1",
    "add qos plain set Flags=DenyOnLimit",
    "add user root account=course qos=normal,strict,lax,plain defaultqos=normal",
)
PROFILE = """\
executor: slurm
scale: laptop
cpus: 1
memory: 1GiB
time_limit: 0:10:00
env: {OMP_NUM_THREADS: "1"}
slurm:
  srun_args: ["--cpus-per-task=1"]
  account: course
  partition: hour
"""


@pytest.fixture(scope="module")
def limited(tmp_path_factory):
    """A cluster of its own, whose controller some of these tests kill."""
    with started_cluster(tmp_path_factory.mktemp("limited"), EXTRA) as reach:
        daemons = Daemons(reach)
        for command in ACCOUNTS:
            daemons.ask("sacctmgr", "-i", *command.split())
        until(
            lambda: (
                "Account=course UserName=root"
                in daemons.ask("scontrol", "show", "assoc_mgr", "users=root", "flags=assoc")
            )
        )
        yield reach


@pytest.fixture
def cluster(limited):
    yield limited
    Daemons(limited).restore()


@pytest.fixture
def daemons(cluster):
    return Daemons(cluster)


@pytest.fixture
def slurm(runner, cluster):
    return lambda *arguments, rc=None, **env: runner(*arguments, rc=rc, **{**cluster, **PACED, **env})


@pytest.fixture
def profile(tmp_path):
    """The profile, with some lines in place of others, or more at its end."""

    def write(*changes):
        text = PROFILE
        for change in changes:
            key = re.escape(change.partition(":")[0])
            text, count = re.subn(rf"^{key}:.*$", change, text, flags=re.M)
            text += "" if count else f"{change}\n"
        (path := tmp_path / "limited.yaml").write_text(text)
        return path

    return write


@pytest.mark.refused
@pytest.mark.parametrize(
    ("change", "line", "words", "choices"),
    [
        ("  partition: nowhere", 10, "Invalid partition name specified", "can be debug, hour, minutes"),
        ("  account: nobody", 9, "Invalid account or account/partition combination", "can be course, root"),
        ("  qos: nosuch", 11, "Invalid qos specification", "can be lax, normal, plain, strict"),
        ("memory: 99GiB", 4, "Memory specification can not be satisfied", "a node has 4000 MB"),
        (
            "  gres: 'gpu:h100:1'",
            11,
            "Requested node configuration is not available",
            "4 CPUs, 4000 MB, gpu:4",
        ),
        ("  gres: 'tpu:1'", 11, "Invalid generic resource (gres) specification", "a node has gpu:4"),
        ("  constraint: fast", 11, "Invalid feature specification", "a node has no features"),
        ("  reservation: mine", 11, "Requested reservation is invalid", "the cluster has no reservation"),
    ],
)
def test_a_forbidden_request_ends_a_launch_that_waits_and_a_dry_run_says_so(
    slurm, study, profile, outcomes, change, line, words, choices
):
    path = profile(change)
    process = slurm("launch", study(), "--profile", path, "--wait", rc=3)
    message = process.stderr.splitlines()[-1]
    assert message.startswith(f"{path}:{line}:")
    assert words in message and choices in message
    assert list(outcomes().values()) == ["planned"]
    dry = slurm("launch", study(), "--profile", path, "--dry-run", rc=0).stderr
    assert re.search(rf"(refused|no start estimate): {path}:\d+:", dry)


@pytest.mark.refused
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["  partition: minutes"], "0:10:00 is above the 5:00 in partition minutes"),
        (["time_limit: 0:30:00", "  qos: strict"], "0:30:00 is above the 00:20:00 with QoS strict"),
    ],
)
def test_a_time_limit_that_slurm_would_never_start_is_refused_with_its_line(
    slurm, study, profile, changes, message
):
    """Slurm accepts such a job (PartitionTimeLimit), and even estimates its start."""
    path = profile(*changes)
    assert f"{path}:5:1: {message}" in slurm("launch", study(), "--profile", path, "--wait", rc=3).stderr
    dry = slurm("launch", study(), "--profile", path, "--dry-run", rc=0).stderr
    assert f"a launch would be refused: {path}:5:1: {message}" in dry
    assert "expects the first job" not in dry


@pytest.mark.refused
def test_a_limit_on_time_that_only_sbatch_knows_is_no_full_queue(slurm, study, profile, daemons, outcomes):
    """The limit of the association, which the profile does not name."""
    daemons.ask(
        "sacctmgr", "-i", "modify", "user", "root", "where", "account=course", "set", "MaxWall=00:02:00"
    )
    path = profile("  qos: plain")
    try:
        until(
            lambda: "MaxWallPJ=2" in daemons.ask("scontrol", "show", "assoc_mgr", "users=root", "flags=assoc")
        )
        stderr = slurm("launch", study(), "--profile", path, "--wait", rc=3).stderr
    finally:
        unlimited = "modify user root where account=course set MaxWall=-1"
        daemons.ask("sacctmgr", "-i", *unlimited.split())
    assert f"{path}:5:1: sbatch: AssocMaxWallDurationPerJobLimit; Batch job submission failed: " in stderr


def test_a_full_queue_is_waited_for_until_all_runs_have_ended(slurm, study, profile, outcomes, root):
    """The QoS lets two jobs into the queue."""
    path = profile("  qos: strict")
    four = study("matrix: {seed: [0, 1, 2, 3]}\n")
    stderr = slurm("launch", four, "--profile", path, rc=3).stderr
    assert "QOSMaxSubmitJobPerUserLimit" in stderr and "2 submitted, 2 left: launch again later" in stderr
    slurm("launch", four, "--profile", path, "--wait", rc=0)
    assert list(outcomes().values()) == ["completed"] * 4
    assert len(list(root.glob("tiny/*/attempt-*"))) == 4


@pytest.mark.parametrize("waits", [[], ["--wait"]])
def test_a_run_that_slurm_accepts_and_never_starts_is_named(
    background, slurm, study, profile, cluster, root, waits
):
    path = profile("  qos: lax", "cpus: 2", '  srun_args: ["--cpus-per-task=2"]')
    command = ["--root", root, "launch", study(), "--profile", path, *waits]
    launch = background("runner", *command, cwd=root.parent, **{**cluster, **PACED})
    until(lambda: "never starts" in launch.stderr)
    slurm("cancel", "tiny", rc=0)
    _, stderr = launch.communicate(timeout=600)
    (run,) = root.glob("tiny/[0-9a-f]*")
    lines = [
        line for line in stderr.splitlines() if line.startswith(f"tiny/{run.name}: {path}:3:1: QOSMaxCpu")
    ]
    assert len(lines) == 1
    assert f"it never starts as asked: `runner cancel tiny/{run.name}` ends that" in lines[0]


def test_a_reason_that_comes_later_is_told_while_waiting(
    background, slurm, study, profile, cluster, root, daemons
):
    """An administrator holds the job."""
    for node in ("n1", "n2", "n3", "n4"):
        daemons.ask("scontrol", "update", f"nodename={node}", "state=drain", "reason=test")
    command = ["--root", root, "launch", study(), "--profile", profile(), "--wait"]
    launch = background("runner", *command, cwd=root.parent, **{**cluster, **PACED})
    job = until(lambda: daemons.ask("squeue", "-h", "-o", "%A").strip())
    daemons.ask("scontrol", "update", f"jobid={job}", "priority=0")
    until(lambda: "JobHeldAdmin" in launch.stderr)
    assert f"Slurm holds it: `scontrol release {job}` lets it start" in launch.stderr
    slurm("cancel", "tiny", rc=0)
    launch.communicate(timeout=600)


@pytest.mark.fault
def test_what_a_wrapper_of_sbatch_says_is_no_jobs_number(
    slurm, study, profile, rows, tmp_path, daemons, root
):
    """It speaks of job 42, which Slurm does not know: the run was lost, and trained a second time."""
    wrapper = 'echo "quota: your last job 42 used 10 % of its memory"; exec /usr/bin/sbatch "$@"'
    slurm("launch", study(), "--profile", profile(), rc=0, **stand_in(tmp_path / "bin", "sbatch", wrapper))
    (row,) = rows()
    assert row["job_id"] in daemons.ask("sacct", "-nXP", "-o", "JobID") + daemons.ask(
        "squeue", "-h", "-o", "%A"
    )
    slurm("launch", study(), "--profile", profile(), "--wait", rc=0)
    assert [(row["outcome"], row["attempt"]) for row in rows()] == [("completed", 1)]


@pytest.mark.fault
@pytest.mark.parametrize("state", [1, 0], ids=["running", "pending"])
def test_a_run_that_goes_on_for_accounting_alone_is_lost_and_can_be_launched_again(
    slurm, study, profile, rows, root, daemons, monkeypatch, state
):
    """The controller and the node died, and the controller's state is gone."""
    path = study("matrix: {train.steps: [1000000]}\n")
    slurm("launch", path, "--profile", profile(), rc=0)
    until(lambda: training(root))
    (row,) = rows()
    daemons.end("slurmctld", 9)
    for node in ("n1", "n2", "n3", "n4"):
        daemons.crash(node)
    subprocess.run(["slurmctld", "-c"], env=daemons.env, check=True)
    for node in ("n1", "n2", "n3", "n4"):
        daemons.start(f"slurmd.{node}")
    until(daemons.all_work)
    forget = f"update assay_job_table set state={state}, time_end=0 where id_job={row['job_id']}"
    subprocess.run(
        ["mysql", "--no-defaults", f"--socket={daemons.folder}/db.sock", "slurm_acct_db", "-e", forget],
        check=True,
    )
    states = daemons.ask("sacct", "-nXP", "-j", row["job_id"], "-o", "State,End")
    assert states.strip() in ("RUNNING|Unknown", "PENDING|Unknown")
    assert [entry["phase"] for entry in rows()] == ["running"], "it may have ended a moment ago"
    cancelled = slurm("cancel", "tiny", rc=1).stderr
    assert f"Slurm's controller does not know its job {row['job_id']}" in cancelled
    monkeypatch.setattr(reconcile, "ACCOUNTING_DELAY", timedelta())
    (row,) = rows()
    assert row["outcome"] == "lost"
    assert "goes on in Slurm's accounting alone" in row["reason"]
    assert "nothing of tiny is in flight" in slurm("cancel", "tiny", rc=0).stderr
    assert "1 submitted" in slurm("launch", path, "--profile", profile(), rc=0).stderr
    until(lambda: training(root))
    slurm("cancel", "tiny", rc=0)
    until(lambda: [entry["outcome"] for entry in rows()] == ["cancelled"])
