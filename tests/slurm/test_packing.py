"""Runs of one GPU share whole nodes of a real Slurm cluster, a slot each, and do not share their fate."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import PACED, environment, until
from tests.slurm.test_cluster import by_steps, training

pytestmark = pytest.mark.slurm
RUNNER = [sys.executable, "-P", "-m", "runner"]
PACKED = Path(__file__).with_name("packed.yaml")


@pytest.fixture
def slurm(runner, cluster):
    """The command line with a cluster in reach, and runs that take their time."""
    return lambda *arguments, rc=None: runner(*arguments, rc=rc, **cluster, **PACED)


def manifests(root):
    return [json.loads(path.read_text()) for path in root.glob("tiny/*/attempt-*/manifest.json")]


def adjusted(tmp_path, *changes):
    """The profile with some of its lines changed."""
    text = PACKED.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (path := tmp_path / "adjusted.yaml").write_text(text)
    return path


def test_runs_share_a_job_and_each_has_a_gpu_of_its_own(slurm, root, study, rows, outcomes):
    """Three runs on nodes of two slots are an array of two elements, one of them half empty."""
    slurm("launch", study("matrix: {seed: [0, 1, 2]}\n"), "--profile", PACKED, "--wait", rc=0)
    assert set(outcomes().values()) == {"completed"}
    jobs = [row["job_id"] for row in rows()]
    assert sorted(jobs.count(job) for job in set(jobs)) == [1, 2]
    slots = {(m["slurm"]["SLURM_JOB_ID"], m["slurm"]["CUDA_VISIBLE_DEVICES"]) for m in manifests(root)}
    assert len(slots) == 3, "no two runs of a job see the same GPU"
    assert all(len(gpu.split(",")) == 1 for _, gpu in slots), "and each sees one"


def test_a_run_that_is_killed_leaves_the_run_that_shares_its_node(slurm, root, study, outcomes):
    """The longest run is killed; the other one goes on to its end."""
    slurm(
        "launch",
        study("order: as written\nmatrix: {train.steps: [1000000, 60]}\n"),
        "--profile",
        PACKED,
        rc=0,
    )
    until(lambda: len(list(root.glob("tiny/*/attempt-1/steps.jsonl"))) == 2)
    by_steps(root, 1_000_000).kill()
    until(lambda: not {"queued", "running"} & set(outcomes().values()))
    assert sorted(outcomes().values()) == ["completed", "failed"]


def test_cancelling_a_run_leaves_the_run_that_shares_its_job(slurm, root, study, rows, outcomes):
    """One is cancelled as it waits or runs, the other completes."""
    slurm(
        "launch",
        study("order: as written\nmatrix: {train.steps: [1000000, 120]}\n"),
        "--profile",
        PACKED,
        rc=0,
    )
    until(lambda: len(list(root.glob("tiny/*/attempt-1/steps.jsonl"))) == 2)
    (long,) = [row["run_id"] for row in rows() if row["factors"]["train.steps"] == 1_000_000]
    slurm("cancel", long, rc=0)
    assert outcomes()[long] == "cancelled"
    until(lambda: not {"queued", "running"} & set(outcomes().values()))
    assert sorted(outcomes().values()) == ["cancelled", "completed"]
    until(lambda: training(root) is None)
    (result,) = root.glob(f"tiny/{long}/attempt-1/result.json")
    assert json.loads(result.read_text())["outcome"] == "cancelled", "its process has stopped by itself"


def test_runs_that_share_a_job_go_on_together_before_the_limit_and_one_that_is_done_does_not(
    slurm, root, study, tmp_path, rows, outcomes
):
    """Of two jobs with two runs each one holds a short run, which trains once; the others save and go on."""
    minute = adjusted(tmp_path, ("0:10:00", "0:01:00"))
    path = study("order: as written\nmatrix: {train.steps: [20, 1000000, 1000001, 1000002]}\n")
    slurm("launch", path, "--profile", minute, rc=0)
    until(lambda: len(list(root.glob("tiny/*/attempt-2/steps.jsonl"))) == 3)
    runs = {row["factors"]["train.steps"]: row for row in rows()}
    slurm("cancel", path, rc=0)
    jobs = [runs[steps]["job_id"] for steps in (20, 1_000_000, 1_000_001, 1_000_002)]
    assert jobs[0] == jobs[1] != jobs[2] == jobs[3]
    assert (runs[20]["attempt"], runs[20]["outcome"]) == (1, "completed")
    for first in root.glob("tiny/*/attempt-1/steps.jsonl"):
        if (second := first.parent.parent / "attempt-2" / "steps.jsonl").exists():
            last, successor = (
                json.loads(path.read_text().splitlines()[at]) for path, at in ((first, -1), (second, 0))
            )
            assert successor["step"] - successor["steps"] == last["step"], "it goes on where it stopped"
    until(lambda: not {"queued", "running"} & set(outcomes().values()))


def test_a_full_queue_is_filled_again_as_it_empties(slurm, root, study, tmp_path, rows, outcomes):
    """At most one job waits or runs; without --wait the rest is named and left for the next launch."""
    profile = adjusted(tmp_path, ("max_parallel: 4", "max_parallel: 4\nmax_queued: 1"))
    path = study("matrix: {seed: [0, 1, 2, 3]}\n")
    refused = slurm("launch", path, "--profile", profile, rc=3).stderr
    assert "max_queued of 1" in refused
    assert "2 submitted, 2 left" in refused
    slurm("launch", path, "--profile", profile, "--wait", rc=0)
    assert list(outcomes().values()) == ["completed"] * 4
    assert len({row["job_id"] for row in rows()}) == 2
    assert len(list(root.glob("tiny/*/attempt-*"))) == 4


def test_all_arrays_of_a_launch_keep_to_one_cap(slurm, cluster, root, study, tmp_path):
    """Arrays of one element and a cap of two: the third waits for the first one's end."""
    (bin_ := tmp_path / "bin").mkdir()
    (bin_ / "scontrol").write_text(
        '#!/bin/sh\n[ "$2" = config ] && echo "MaxArraySize = 1" || exec /usr/bin/scontrol "$@"\n'
    )
    (bin_ / "scontrol").chmod(0o755)
    path = study("matrix: {seed: [0, 1, 2, 3, 4, 5]}\n")
    narrow = {**cluster, "PATH": f"{bin_}:{cluster['PATH']}"}
    deferred = adjusted(tmp_path, ("exclusive: true", "exclusive: true\n  options: {begin: now+1hour}"))
    command = [*RUNNER, "--root", str(root), "launch", str(path), "--profile", str(deferred)]
    subprocess.run(command, env=environment(**narrow), check=True)
    query = ["squeue", "-h", "-t", "pending", "-o", "%i %E"]
    stdout = subprocess.run(
        query, env=environment(**cluster), capture_output=True, text=True, check=True
    ).stdout
    waits = stdout.splitlines()
    assert sorted(("afterany" in line) for line in waits) == [False, False, True], waits
