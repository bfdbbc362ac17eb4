"""The test cluster as other centres have theirs: what they reject is not asked, and a study ends as it should."""

import contextlib
import signal
import time

import psutil
import pytest

from model.record.folder import RunFolder
from tests.conftest import PACED, started_cluster, until
from tests.slurm.test_cluster import SANDBOX, training

pytestmark = pytest.mark.slurm
# As TACC has it (docs.tacc.utexas.edu/hpc/vista): -N and -n are asked for, memory and GPUs are not. As a teaching
# cluster has it: one hour, nobody requeues, nothing is accounted.
STRICT = """\
function slurm_job_submit(job, partitions, user)
  local asked = {
    ["--mem"] = job.pn_min_memory ~= slurm.NO_VAL64,
    ["--gres or --gpus"] = job.gres ~= nil or job.tres_per_node ~= nil or job.tres_per_task ~= nil,
    ["--requeue"] = job.requeue == 1,
  }
  for name, there in pairs(asked) do
    if there then
      slurm.log_user("%s is not allowed here", name)
      return slurm.ERROR
    end
  end
  if job.min_nodes == slurm.NO_VAL or job.num_tasks == slurm.NO_VAL then
    slurm.log_user("give both -N and -n")
    return slurm.ERROR
  end
  return slurm.SUCCESS
end

function slurm_job_modify(job, record, partitions, user)
  return slurm.SUCCESS
end
"""
CONFIGURATION = """\
AccountingStorageType=accounting_storage/none
JobSubmitPlugins=lua
PartitionName=teaching Nodes=ALL MaxTime=1:00:00
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with started_cluster(tmp_path_factory.mktemp("strict"), CONFIGURATION, STRICT) as reach:
        yield reach


@pytest.fixture
def slurm(runner, cluster):
    return lambda *arguments, rc=None: runner(*arguments, rc=rc, **cluster, **PACED)


@pytest.fixture
def profile(tmp_path):
    """A profile of the teaching partition with these keys more."""

    def write(slurm="", **keys):
        text = SANDBOX.read_text().replace(
            "partition: debug", f"partition: teaching\n  ask_memory: false\n{slurm}"
        )
        for key, value in keys.items():
            text = "".join(line for line in text.splitlines(keepends=True) if not line.startswith(f"{key}:"))
            text += f"{key}: {value}\n"
        (path := tmp_path / "teaching.yaml").write_text(text)
        return path

    return write


def test_a_study_runs_where_memory_gpus_and_requeueing_cannot_be_asked_for_and_nothing_is_accounted(
    slurm, study, rows, profile
):
    path = study("matrix: {seed: [0, 1]}\n")
    slurm("launch", path, "--profile", profile(requeue="false"), "--wait", rc=0)
    assert [row["outcome"] for row in rows()] == ["completed"] * 2


@pytest.mark.parametrize(
    ("slurm_keys", "keys", "message"),
    [
        ("  ask_memory: true\n", {"requeue": "false"}, "--mem is not allowed here"),
        ("", {}, "--requeue is not allowed here"),
    ],
)
@pytest.mark.refused
def test_what_a_centre_rejects_is_told_in_its_own_words_and_nothing_is_left_behind(
    slurm, study, rows, profile, slurm_keys, keys, message
):
    path = profile(slurm_keys, **keys)
    if slurm_keys:
        path.write_text(path.read_text().replace("  ask_memory: false\n", ""))
    refused = slurm("launch", study("matrix: {seed: [0]}\n"), "--profile", path, rc=3)
    assert message in refused.stderr
    assert [row["phase"] for row in rows()] == ["planned"]


def test_a_run_that_is_longer_than_an_hour_goes_on_in_new_jobs_without_a_launcher(
    slurm, study, root, rows, profile
):
    """The hour is a minute here, most of which the run sleeps.

    As in a container without Slurm's commands, Python sees no program at all; the batch script, on the host, does.
    """
    path = study("matrix: {train.steps: [400]}\n")
    short = profile(requeue="false", time_limit="0:01:00", wrapper="[/usr/bin/env, PATH=/none]")
    slurm("launch", path, "--profile", short, rc=0)
    asleep = [until(lambda: training(root))]
    asleep[0].send_signal(signal.SIGSTOP)

    def over():
        if asleep and time.time() - asleep[0].create_time() > 45:
            with contextlib.suppress(psutil.NoSuchProcess):  # Slurm has woken it, and it has ended
                asleep.pop().send_signal(signal.SIGCONT)
        return rows()[0]["phase"] == "ended"

    until(over)
    (folder,) = [RunFolder(run.parent) for run in root.glob("tiny/*/run.json")]
    outcome, reason = folder.attempt(1).settled
    assert (outcome, rows()[0]["outcome"]) == ("timeout", "completed")
    assert "stopped before the time limit" in reason
    jobs = [attempt.job_id for attempt in folder.attempts()]
    assert len({*jobs}) == len(jobs) > 1
    manifests = [attempt.manifest for attempt in folder.attempts()]
    assert [manifest.resumed_attempt for manifest in manifests[1:]] == [*range(1, len(jobs))]


def test_a_setup_line_that_fails_is_the_reason_of_the_run(slurm, study, rows, profile):
    path = profile("  setup: [module load no-such-module]\n", requeue="false")
    slurm("launch", study("matrix: {seed: [0]}\n"), "--profile", path, "--wait", rc=1)
    (row,) = rows()
    assert row["outcome"] == "failed"
    assert "slurm.setup: 'module load no-such-module' ended with exit code 127" in row["reason"]


def test_what_srun_says_is_the_reason_of_a_run_that_did_not_begin(slurm, study, rows, profile):
    path = profile("", requeue="false", wrapper="[/no/such/program]")
    slurm("launch", study("matrix: {seed: [0]}\n"), "--profile", path, "--wait", rc=1)
    (row,) = rows()
    assert row["outcome"] in ("failed", "lost")
    assert "/no/such/program" in row["reason"]
