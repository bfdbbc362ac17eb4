"""Runs of eight processes over the four nodes of a real Slurm cluster, two a node."""

import json
import re
import signal

import psutil
import pytest

from tests.conftest import TINY, until
from tests.faults.test_processes import FOR_EVER, LONGER, ONE_RUN, manifest, told, trains
from tests.slurm.test_cluster import SANDBOX

pytestmark = pytest.mark.slurm
LARGER = TINY.replace("batch_size: 2", "batch_size: 16")
EIGHT = LARGER + "  parallel: {shard: 8}\n"
NODES = ["n1", "n2", "n3", "n4"]


@pytest.fixture
def profile(tmp_path):
    """The test cluster, two processes a node."""
    text = SANDBOX.read_text().replace("memory: 3GiB", "memory: 900MiB\nprocesses_per_node: 2")
    (path := tmp_path / "two.yaml").write_text(text)
    return path


def nodes_of(attempt):
    return sorted(rank["node"] for rank in manifest(attempt)["ranks"])


def losses(run):
    """By step, of the last attempt that took it."""
    taken = {}
    for attempt in sorted(run.glob("attempt-*")):
        for line in (attempt / "steps.jsonl").read_text().splitlines():
            record = json.loads(line)
            taken[record["step"]] = record["loss"]
    return taken


def process_of(attempt, rank):
    """The process of a rank other than 0."""
    for process in psutil.process_iter(["cmdline", "cwd"]):
        words = process.info["cmdline"] or []
        if (
            process.info["cwd"] == str(attempt)
            and "runner.job.ranks.follower" in words
            and process.environ().get("SLURM_PROCID") == str(rank)
        ):
            return process
    return None


@pytest.mark.trains
def test_eight_processes_reach_the_loss_of_one_and_so_do_four_from_their_checkpoint(
    slurm, study, root, rows, profile, hurry
):
    # With a pause after each step, half a minute, until the last of them are let go on without.
    path = study("matrix: {parallel.shard: [1, 8]}\n", base=LARGER.replace("steps: 6", "steps: 300"))
    slurm("launch", path, "--profile", profile, "--only", "parallel.shard=8", rc=0)
    _, attempt = trains(root)
    assert nodes_of(attempt) == sorted(NODES * 2)
    slurm("cancel", "tiny", rc=0)
    until(lambda: rows()[0]["outcome"] == "cancelled")
    hurry()
    change = ("--set", "parallel.shard=4", "--profile", profile)
    slurm("retry", "tiny", "--outcome", "cancelled", *change, "--wait", rc=0)
    again = attempt.with_name("attempt-2")
    assert len(nodes_of(again)) == 4 and manifest(again)["resumed_step"] > 0
    slurm("launch", path, "--profile", profile, "--only", "parallel.shard=1", "--wait", rc=0)
    assert {row["outcome"] for row in rows()} == {"completed"}
    alone = losses(next(run for run in root.glob("tiny/[0-9a-f]*") if run != attempt.parent))
    shared = losses(attempt.parent)  # with a record more where it was cancelled
    assert {step: shared[step] for step in alone} == pytest.approx(alone, rel=1e-4)


def test_one_of_eight_that_is_killed_ends_the_run_and_is_named(slurm, study, root, rows, profile, daemons):
    slurm("launch", study(ONE_RUN, base=EIGHT), "--profile", profile, *FOR_EVER, rc=0)
    _, attempt = trains(root)
    process_of(attempt, 5).kill()
    until((attempt / "result.json").exists)
    node = manifest(attempt)["ranks"][5]["node"]
    assert told(attempt) == ("failed", f"rank 5 on {node}: killed by SIGKILL")
    until(lambda: not daemons.ask("squeue", "-h"))


def test_one_of_eight_that_stops_ends_the_run_as_a_hang_and_is_named(
    slurm, study, root, rows, profile, daemons
):
    slurm("launch", study(ONE_RUN, base=EIGHT), "--profile", profile, *FOR_EVER, rc=0, TURN_SECONDS="1")
    _, attempt = trains(root)
    stopped = process_of(attempt, 6)
    stopped.send_signal(signal.SIGSTOP)
    until((attempt / "result.json").exists)
    outcome, reason = told(attempt)
    assert outcome == "failed" and reason.startswith("hangs: nothing has moved for 120 s; rank 6 on n")
    until(lambda: not daemons.ask("squeue", "-h"))


def test_a_node_that_is_lost_takes_two_of_eight_with_it_and_the_run_goes_on_when_it_is_back(
    slurm, study, root, rows, profile, daemons, hurry
):
    slurm("launch", study(ONE_RUN, base=EIGHT), "--profile", profile, *LONGER, rc=0)
    _, attempt = trains(root)
    node = manifest(attempt)["ranks"][7]["node"]
    daemons.crash(node)
    hurry()
    until((attempt / "result.json").exists)
    outcome, reason = told(attempt)
    assert outcome == "node_failed" and re.search(rf"on {node}: both it and its Slurm task are gone", reason)
    daemons.start(f"slurmd.{node}")
    until(lambda: rows()[0]["outcome"] == "completed")
    assert nodes_of(attempt.with_name("attempt-2")) == sorted(NODES * 2)
