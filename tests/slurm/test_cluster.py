"""Studies on a real Slurm cluster: arrays, real kills, real out-of-memory, and outcomes that are true."""

import contextlib
import functools
import json
import os
import re
import subprocess
from pathlib import Path

import psutil
import pytest

from tests.conftest import PACED, REPOSITORY, until

pytestmark = pytest.mark.slurm
SANDBOX = Path(__file__).with_name("sandbox.yaml")


@pytest.fixture
def slurm(runner, cluster):
    """The command line with a cluster in reach, and runs that take their time."""
    return lambda *arguments, rc=None: runner(*arguments, rc=rc, **cluster, **PACED)


def training(root, study="*"):
    """The process of a run that has written a step record and no result."""
    runs = study if "/" in study else f"{study}/*"
    for manifest in root.glob(f"{runs}/attempt-*/manifest.json"):
        if (manifest.parent / "steps.jsonl").exists() and not (manifest.parent / "result.json").exists():
            with contextlib.suppress(psutil.NoSuchProcess):
                return psutil.Process(json.loads(manifest.read_text())["pid"])
    return None


def by_steps(root, steps):
    """The process of the run of so many steps, once it trains."""
    for run in root.glob("tiny/*/run.json"):
        if json.loads(run.read_text())["config"]["train"]["steps"] == steps:
            return training(run.parent.parent.parent, f"tiny/{run.parent.name}")
    return None


def accounted(job, fields, cluster):
    """What accounting knows of a job; empty until it knows the job, which a busy cluster tells it late."""
    command = ["sacct", "-XPnj", job, "-o", fields]
    env = {**os.environ, **cluster}
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.trains
def test_the_laptop_study_runs_as_one_job_array_and_each_run_has_its_outcome(slurm, root, corpus):
    study = REPOSITORY / "experiments" / "backends.yaml"
    arguments = [
        "launch",
        study,
        "--profile",
        SANDBOX,
        "--set",
        f"data.path={corpus}",
        "--set",
        "train.steps=6",
        "--set",
        "train.batch_size=1",  # a trial takes as long as its batch is large
        "--only",
        "attention=auto,math,custom",  # tests/model/attention/verify asks those that are left out
    ]
    slurm(*arguments, "--wait", rc=0)
    rows = json.loads(slurm("status", "--json", rc=0).stdout)
    outcomes = {row["factors"]["attention"]: row["outcome"] for row in rows}
    assert outcomes == {"auto": "completed", "math": "oom_host", "custom": "unsupported"}
    assert len({row["job_id"].split("_")[0] for row in rows}) == 1, "all runs are elements of one array"
    assert sorted(int(row["job_id"].split("_")[1]) for row in rows) == list(range(3))
    assert "0 submitted" in slurm(*arguments, "--wait", rc=0).stderr, "a second launch has nothing to do"
    assert len(list(root.glob("*/*/attempt-*"))) == 3
    slurm("collect", rc=0)
    query = "select outcome, count(*) as n from runs group by all order by all"
    totals = json.loads(slurm("sql", query, "--format", "json", rc=0).stdout)
    assert {row["outcome"]: row["n"] for row in totals} == {"completed": 1, "oom_host": 1, "unsupported": 1}


def test_runs_that_ask_for_the_same_resources_share_an_array_and_get_what_they_ask_for(
    slurm, study, root, cluster, outcomes
):
    path = study(
        "matrix: {seed: [0, 1, 2, 3]}\n"
        "rules: [{where: {seed: [1, 3]}, resources: {time_limit: 0:33:00, memory: 2GiB, cpus: 2}}]\n"
    )
    dry_run = slurm("launch", path, "--profile", SANDBOX, "--dry-run", rc=0).stdout
    assert re.findall(r"--time=\d+", dry_run) == ["--time=10", "--time=33"]
    slurm("launch", path, "--profile", SANDBOX, "--wait", rc=0)
    assert set(outcomes().values()) == {"completed"}
    resources = {}
    for run in (root / "tiny").glob("[0-9a-f]*"):
        job = json.loads((run / "attempt-1" / "manifest.json").read_text())["slurm"]
        element = f"{job['SLURM_ARRAY_JOB_ID']}_{job['SLURM_ARRAY_TASK_ID']}"
        answer = until(functools.partial(accounted, element, "Timelimit,ReqCPUS,ReqTRES%80", cluster))
        row = answer.split("|")
        seed = json.loads((run / "run.json").read_text())["factors"]["seed"]
        resources[seed] = (job["SLURM_ARRAY_JOB_ID"], *row[:2], re.search(r"mem=(\w+)", row[2])[1])
    assert (resources[0], resources[1]) == (resources[2], resources[3])
    assert resources[0][1:] == ("00:10:00", "1", "3G")
    assert resources[1][1:] == ("00:33:00", "2", "2G")
    assert resources[1][0] != resources[0][0]


def test_runs_of_one_and_of_two_processes_that_run_alone_keep_their_order(
    slurm, study, tmp_path, root, cluster, rows
):
    """Each is in an array of its own. Of two arrays of three, one would run to its end before the other begins."""
    profile = tmp_path / "spread.yaml"
    profile.write_text(SANDBOX.read_text().replace("3GiB", "1GiB") + "processes_per_node: 2\n")
    path = study("order: as written\nmatrix: {train.steps: [10, 11, 12], parallel.shard: [1, 2]}\n")
    alone = ("--set", "train.batch_size=2", "--parallel", "1", "--wait")
    stderr = slurm("launch", path, "--profile", profile, *alone, rc=0).stderr
    assert (
        "6 arrays, because runs have different numbers of processes: they start one after another" in stderr
    )
    times = {}
    for row in rows():
        assert row["outcome"] == "completed"
        place = json.loads((root / "tiny" / row["run_id"] / "run.json").read_text())["position"]
        times[place] = until(functools.partial(accounted, row["job_id"], "Start,End", cluster)).split("|")
    order = [time for place in sorted(times) for time in times[place]]
    assert len(order) == 12 and order == sorted(order), "each begins when the one before has ended"


def test_a_killed_job_says_so_and_the_others_complete(slurm, root, study, outcomes):
    path = study("order: as written\nmatrix: {train.steps: [1000000, 5, 6]}\n")
    slurm("launch", path, "--profile", SANDBOX, rc=0)
    until(lambda: by_steps(root, 1_000_000)).kill()
    until(lambda: not {"queued", "running"} & set(outcomes().values()))
    assert sorted(outcomes().values()) == ["completed", "completed", "failed"]
    (reason,) = [row["reason"] for row in json.loads(slurm("status", "--json").stdout) if row["reason"]]
    assert reason.startswith("Slurm: FAILED")


def test_cancel_ends_running_and_waiting_jobs(slurm, root, study, outcomes):
    path = study("matrix: {train.steps: [1000000], seed: [0, 1, 2, 3, 4, 5]}\n")
    slurm("launch", path, "--profile", SANDBOX, rc=0)
    until(lambda: training(root))

    def waiting():
        return [row["waits_for"] for row in json.loads(slurm("status", "--json").stdout) if row["waits_for"]]

    until(lambda: waiting() == ["JobArrayTaskLimit"] * 2)  # beyond max_parallel
    assert slurm("status").stdout.count("waits: JobArrayTaskLimit") == 2
    assert "cancelling 6 runs in flight, of 6" in slurm("cancel", path, rc=0).stderr
    until(lambda: set(outcomes().values()) == {"cancelled"})


@pytest.mark.fault
@pytest.mark.parametrize("option", [[], ["--now"]])
def test_a_cancelled_run_has_the_time_that_its_checkpoint_takes(
    runner, cluster, study, root, outcomes, option
):
    """Slurm kills a cancelled job after KillWait, here 3 s; 8 billion parameters took 80 s to save."""

    def slurm(*arguments):
        return runner(*arguments, rc=0, SAVE_SECONDS="6", **cluster, **PACED)

    path = study("matrix: {train.steps: [1000000]}\n")
    slurm("launch", path, "--profile", SANDBOX)
    until(lambda: training(root))
    slurm("cancel", path, *option)
    assert "1 in flight" in slurm("launch", path, "--profile", SANDBOX).stderr
    until(lambda: set(outcomes().values()) == {"cancelled"})
    assert bool(list(root.glob("tiny/*/attempt-1/checkpoint/meta.json"))) == (not option)


@pytest.mark.trains
def test_a_job_that_outgrows_its_cgroup_ends_oom_host(slurm, study, tmp_path, outcomes):
    if not Path("/sys/fs/cgroup/memory").is_dir():
        pytest.skip("no memory cgroup of version 1 on this machine")
    (profile := tmp_path / "small.yaml").write_text(
        "executor: slurm\nslurm: {options: {mem: 150M}}\n"  # less than importing torch takes
    )
    slurm("launch", study(), "--profile", profile, "--wait", rc=1)
    assert list(outcomes().values()) == ["oom_host"]


@pytest.mark.refused
@pytest.mark.parametrize(
    ("setting", "message"),
    [("partition: nowhere", "nvalid partition"), ("gres: 'gpu:h100:1'", "not available")],
)
def test_a_refusal_is_exit_code_3_with_slurms_own_words(slurm, study, tmp_path, setting, message, outcomes):
    (profile := tmp_path / "wrong.yaml").write_text(f"executor: slurm\nslurm: {{{setting}}}\n")
    refused = slurm("launch", study(), "--profile", profile, rc=3).stderr
    assert message in refused
    assert "wrong.yaml:2:9: " in refused, "the profile's line"
    assert list(outcomes().values()) == ["planned"], "nothing was submitted, nothing is lost"


def test_a_run_gets_its_own_gpu_from_gres(slurm, study, root, tmp_path):
    """The stand-in GPUs of the sandbox show in the manifest as Slurm gave them."""
    (profile := tmp_path / "gpu.yaml").write_text("executor: slurm\nmemory: 1GiB\nslurm: {gres: 'gpu:1'}\n")
    slurm("launch", study("matrix: {seed: [0, 1]}\n"), "--profile", profile, "--wait", rc=0)
    manifests = [json.loads(path.read_text()) for path in root.glob("*/*/attempt-1/manifest.json")]
    assert all(manifest["slurm"]["SLURM_JOB_PARTITION"] == "debug" for manifest in manifests)
    assert all(manifest["slurm"]["SLURM_GPUS_ON_NODE"] == "1" for manifest in manifests)


def test_jobs_start_in_an_environment_of_their_own(slurm, study, root, tmp_path):
    """A module of the same name as ours, in the folder from which the launch was made, is not imported."""
    (tmp_path / "model.py").write_text("raise SystemExit('the wrong model')")
    slurm("launch", study(), "--profile", SANDBOX, "--wait", rc=0)
    (log,) = root.glob("*/*/attempt-1/stderr.log")
    assert "wrong model" not in log.read_text()
    assert (root / "tiny" / ".submitit").stat().st_mode & 0o077 == 0, "batch scripts are their owner's alone"
    assert not list(root.rglob("*.pkl")), "nothing is unpickled"
    until(lambda: subprocess.run(["pgrep", "-f", f"runner.job {root}"], check=False).returncode == 1)
