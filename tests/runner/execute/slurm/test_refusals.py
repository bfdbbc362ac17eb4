"""A refusal of sbatch is told in Slurm's words and ours, and only a full queue is waited for."""

import shlex
import subprocess
from dataclasses import replace
from types import SimpleNamespace

import pytest

from runner.execute.launch import submit_attempts
from runner.execute.slurm import refusals
from runner.execute.slurm.submit import SubmitLimit, SubmitUnknown
from runner.inputs.profile import read_cluster
from runner.state.slurm import NoAnswer, SchedulerError, error_text
from tests.runner.execute.slurm.test_submit import tasks  # noqa: F401  a fixture

PROFILE = """\
executor: slurm
gpus: 1
cpus: 8
memory: 64GiB
time_limit: 12:00:00
max_queued: 50
debug: {partition: test, time_limit: 0:30:00}
slurm:
  partition: gpu
  account: physics
  qos: high
  gres: gpu:h100:1
  constraint: fast
  reservation: course
  options: {dependency: "afterok:1", mail-type: ALL}
"""
# What Slurm says of the cluster when it is asked for the choices.
SINFO = (
    "gpu*|1-00:00:00|4|32|256000|gpu:a100:4|a100,nvlink\n"
    "gpu*|1-00:00:00|2|64|512000|gpu:a100:4|a100,nvlink\n"
    "test|5:00|1|16|64000|(null)|(null)\n"
    "forever|infinite|1|16|64000|(null)|(null)"
)
ASSOC = "ml|normal,short\nphysics|normal,long"
FAILED = "sbatch: error: Batch job submission failed: "
POLICY = FAILED + "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
# Of each: sbatch's lines, the key whose line is named, and what is said beside Slurm's words.
REFUSED = [
    (["sbatch: error: invalid partition specified: gpuu", FAILED + "Invalid partition name specified"],
     "partition", "`slurm.partition` can be gpu, test, forever"),
    ([FAILED + "User's group not permitted to use this partition"], "partition", "can be gpu, test"),
    ([FAILED + "Invalid account or account/partition combination specified"], "account", "can be ml, physics"),
    ([FAILED + "Invalid qos specification"], "qos", "`slurm.qos` can be normal, long"),
    ([FAILED + "Requested time limit is invalid (missing or exceeds some limit)"], "time_limit", "at most 1-00:00:00 in partition gpu"),
    (["sbatch: error: QOSMaxWallDurationPerJobLimit", POLICY], "time_limit", "QOSMaxWallDurationPerJobLimit; "),
    (["sbatch: error: AssocMaxWallDurationPerJobLimit", POLICY], "time_limit", "AssocMaxWall"),
    (["sbatch: error: Memory specification can not be satisfied",
      FAILED + "Requested node configuration is not available"], "memory", "`ask_memory: false`"),
    (["sbatch: error: QOSMaxMemoryPerJob", POLICY], "memory", "QOSMaxMemoryPerJob"),
    (["sbatch: error: CPU count per node can not be satisfied",
      FAILED + "Requested node configuration is not available"], "cpus", "change `cpus`"),
    (["sbatch: error: QOSMaxCpuPerJobLimit", POLICY], "cpus", "QOSMaxCpuPerJobLimit"),
    (["sbatch: error: Invalid generic resource (gres) specification"], "gres", "change `gres`"),
    (["sbatch: error: QOSMaxGRESPerJob", POLICY], "gres", "QOSMaxGRESPerJob"),
    ([FAILED + "Requested node configuration is not available"], "gres", "no node has all that is asked for"),
    ([FAILED + "Invalid feature specification"], "constraint", "change `constraint`"),
    ([FAILED + "Requested reservation is invalid"], "reservation", "has no reservation"),
    ([FAILED + "Invalid job array specification"], "max_queued", "arrays have at most 1,001 elements"),
    ([FAILED + "Job dependency problem"], "dependency", "Job dependency problem"),
    (["sbatch: error: Invalid --mail-type specification"], "mail-type", "--mail-type"),
    (["sbatch: error: QOSMinGRES", POLICY], "gres", "QOSMinGRES"),
    ([POLICY], "qos", "accounting/QOS policy"),
    # Sites' own, from a job_submit or cli_filter plugin; the last line is Slurm's.
    (["sbatch: error: This cluster wants an account", "sbatch: error: lua: see https://docs.example.org",
      FAILED + "Unspecified error"], None, "This cluster wants an account; lua: see https://docs.example.org; "),
]  # fmt: skip
FULL = [
    ["sbatch: error: QOSMaxSubmitJobPerUserLimit", POLICY],
    ["sbatch: error: AssocMaxSubmitJobLimit", POLICY],
    ["sbatch: error: AssocGrpSubmitJobsLimit", POLICY],
    ["sbatch: error: QOSGrpSubmitJobsLimit", POLICY],
    ["sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying.",
     FAILED + "Resource temporarily unavailable"],
    ["sbatch: error: Slurm job queue full, sleeping and retrying."],
    [FAILED + "MaxJobCount limit reached"],
]  # fmt: skip
UNANSWERED = [
    FAILED + "Unable to contact slurm controller (connect failure)",
    FAILED + "Socket timed out on send/recv operation",
    FAILED + "Zero Bytes were transmitted or received",
    FAILED + "Rate limit exceeded, please retry later",
    FAILED + "Slurm backup controller in standby mode",
]


@pytest.fixture
def profile(tmp_path, says):
    """A profile all of whose settings Slurm can refuse, on a cluster that says what it has."""
    says("srun")
    says("sinfo", SINFO)
    says("squeue")
    says("scontrol", "MaxArraySize = 1001\nClusterName = big", also='[ "$3" != show ] || exit 0')
    says("sacctmgr", ASSOC, also='[ "$4" = assoc ] || { echo "high||"; exit; }')
    (path := tmp_path / "big.yaml").write_text(PROFILE)
    return read_cluster(str(path))


@pytest.fixture
def launched(profile, tasks, root, says):  # noqa: F811
    """Submits a run to an sbatch that prints these lines and fails."""
    one = tasks(1)

    def launch(lines, wait=False):
        script = "\n".join(f"echo {shlex.quote(line)} >&2" for line in lines)
        says("sbatch", code=1, also=script)
        plan = SimpleNamespace(
            root=root, study_folder=root / "tiny", study=SimpleNamespace(name="tiny"), cluster=profile
        )
        return submit_attempts(plan, one, wait=wait)

    return launch


@pytest.mark.refused
@pytest.mark.parametrize(("lines", "key", "sentence"), REFUSED)
def test_a_refusal_has_all_of_slurms_words_and_the_line_of_the_profile(
    launched, tmp_path, lines, key, sentence
):
    """`--wait` does not wait: the same request would be refused again."""
    with pytest.raises(SchedulerError) as error:
        launched(lines, wait=True)
    message = str(error.value)
    assert not isinstance(error.value, SubmitLimit | NoAnswer)
    assert error.value.exit_code == 3
    for line in lines:
        assert line.removeprefix("sbatch: error: ") in message
    assert sentence in message
    numbers = [number for number, line in enumerate(PROFILE.splitlines(), 1) if key and f"{key}:" in line]
    assert message.startswith(
        f"{tmp_path}/big.yaml:{numbers[-1] if key != 'time_limit' else 5}:" if key else "sbatch:"
    )


@pytest.mark.refused
@pytest.mark.parametrize("lines", FULL)
def test_a_full_queue_is_waited_for(launched, lines):
    with pytest.raises(SubmitLimit, match="launch again later, or use --wait"):
        launched(lines)
    assert len(launched(lines, wait=True)) == 1


@pytest.mark.fault
@pytest.mark.parametrize("line", UNANSWERED)
def test_a_controller_that_does_not_answer_has_not_refused(launched, line):
    with pytest.raises(SubmitUnknown):
        launched([line])


def test_a_sites_words_about_a_connection_are_a_refusal():
    site = f"Use a node with a connection to the outside; {FAILED}Unspecified error"
    assert not refusals.is_unanswered(site)


def test_a_rehearsals_line_is_that_of_debug(profile):
    short = replace(profile, profile=profile.profile.rehearsal)
    message = refusals.explained("sbatch: Invalid partition name specified", short)
    assert message.startswith(f"{profile.file}:7:9: sbatch: Invalid")


@pytest.mark.parametrize(
    ("reason", "for_ever"),
    [
        ("PartitionTimeLimit", True), ("PartitionNodeLimit", True), ("PartitionConfig", True),
        ("BadConstraints", True), ("QOSMaxWallDurationPerJobLimit", True), ("AssocMaxWallDurationPerJobLimit", True),
        ("QOSMaxCpuPerJobLimit", True), ("QOSMaxGRESPerJob", True), ("QOSMinGRES", True), ("AccountNotAllowed", True),
        ("QOSTimeLimit", True), ("JobHeldAdmin", True), ("JobHeldUser", True), ("JobHoldMaxRequeue", True),
        ("launch failed requeued held", True), ("job requeued in held state", True), ("DependencyNeverSatisfied", True),
        ("Priority", False), ("Resources", False), ("Dependency", False), ("JobArrayTaskLimit", False),
        ("ReqNodeNotAvail, UnavailableNodes:n[1-4]", False), ("PartitionDown", False), ("PartitionInactive", False),
        ("QOSMaxJobsPerUserLimit", False), ("QOSMaxGRESPerUser", False), ("AssocGrpGRES", False), ("BeginTime", False),
        ("QOSGrpCPUMinutesLimit", False), ("AssocMaxJobsLimit", False), ("Licenses", False), ("Reservation", False),
    ],
)  # fmt: skip
def test_what_no_waiting_cures_is_told_from_what_it_does(reason, for_ever):
    assert refusals.is_for_ever(reason) == for_ever


@pytest.mark.parametrize(
    ("partition", "qos", "message"),
    [
        ("test", None, "12:00:00 is above the 5:00 in partition test"),
        ("gpu,test", None, None),
        ("forever", None, None),
        (None, None, None),
        ("gpu", "short", "12:00:00 is above the 06:00:00 with QoS short"),
        ("test", "over", None),
    ],
)
def test_a_time_limit_above_that_of_the_partition_or_qos_is_known_beforehand(
    says, tmp_path, partition, qos, message
):
    """A job may start in any of its partitions, and some QoS go beyond their limits."""
    says("sinfo", SINFO)
    says("scontrol", "AccountingStorageEnforce = associations,limits,qos")
    says("sacctmgr", "normal||\nshort|06:00:00|\nover||PartitionTimeLimit")
    keys = {"partition": partition, "qos": qos or "normal"}
    slurm = ", ".join(f"{name}: '{value}'" for name, value in keys.items() if value)
    (path := tmp_path / "p.yaml").write_text(f"executor: slurm\ntime_limit: 12:00:00\nslurm: {{{slurm}}}\n")
    problem = refusals.too_long(read_cluster(str(path)), 12 * 3600)
    assert problem == (message and f"{path}:2:1: {message}")


def test_every_line_of_standard_error_is_kept_once_and_without_the_commands_name():
    process = subprocess.CompletedProcess(
        "sbatch", 1, "", "sbatch: error: One\nTwo: 2\n\nsbatch: error: One\nsbatch: 3\n"
    )
    assert error_text(process) == "One; Two: 2; 3"
