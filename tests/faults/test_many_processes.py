"""Runs of sixteen and of eight processes over the four nodes of a real Slurm cluster."""

import json
import re
import signal

import psutil
import pytest

from tests.conftest import TINY, until
from tests.faults.test_processes import FOR_EVER, LONGER, ONE_RUN, manifest, told, trains
from tests.slurm.test_cluster import SANDBOX

pytestmark = pytest.mark.slurm
LARGER = TINY.replace("batch_size: 2", "batch_size: 16").replace("log_every: 2", "log_every: 1")
EIGHT, SIXTEEN = (LARGER + f"  parallel: {{shard: {processes}}}\n" for processes in (8, 16))
NODES = ["n1", "n2", "n3", "n4"]


@pytest.fixture
def profile(tmp_path):
    """The test cluster, with so many processes a node."""

    def write(processes=4):
        more = f"memory: 900MiB\nprocesses_per_node: {processes}\ncheckpoint_every: 0:00:01"
        (path := tmp_path / f"{processes}.yaml").write_text(SANDBOX.read_text().replace("memory: 3GiB", more))
        return path

    return write


def nodes_of(attempt):
    return sorted(rank["node"] for rank in manifest(attempt)["ranks"])


def losses(attempt):
    """By step."""
    records = map(json.loads, (attempt / "steps.jsonl").read_text().splitlines())
    return {record["step"]: record["loss"] for record in records}


def followers(attempt):
    """The processes other than rank 0, by rank."""
    by_rank = {}
    for process in psutil.process_iter(["cmdline", "cwd"]):
        words = process.info["cmdline"] or []
        if process.info["cwd"] == str(attempt) and "runner.job.ranks.follower" in words:
            by_rank[int(process.environ()["SLURM_PROCID"])] = process
    return by_rank


@pytest.mark.trains
def test_eight_of_which_one_is_killed_go_on_as_four_and_eight_and_lose_what_one_process_does(
    slurm, study, root, rows, profile, daemons, hurry
):
    """A cancelled run saves its last step; a killed one goes on from its last checkpoint, and takes steps again."""
    base, slow = LARGER.replace("steps: 6", "steps: 24"), {"PACE_SECONDS": "1"}
    path = study("matrix: {parallel.shard: [1, 8]}\n", base=base)
    slurm("launch", path, "--profile", profile(2), "--only", "parallel.shard=8", rc=0, **slow)
    rank_0, killed = trains(root)
    saved, result = killed / "checkpoint" / "meta.json", killed / "result.json"
    until(lambda: (len(losses(killed)) > 3 and saved.exists()) or result.exists())
    assert not result.exists(), told(killed)
    followers(killed)[5].kill()
    until((killed / "result.json").exists)
    node = manifest(killed)["ranks"][5]["node"]
    assert told(killed) == ("failed", f"rank 5 on {node}: killed by SIGKILL")
    until(lambda: not daemons.ask("squeue", "-h"))
    assert not followers(killed) and not rank_0.is_running(), "the other seven have ended"
    change = ("--set", "parallel.shard=4", "--profile", profile(1))
    slurm("retry", "tiny", "--outcome", "failed", *change, rc=0, **slow)
    _, stopped = trains(root)
    slurm("cancel", "tiny", rc=0)
    until((stopped / "result.json").exists)
    assert told(stopped)[0] == "cancelled"
    until(lambda: rows()[0]["outcome"] == "cancelled")  # the job has ended, too
    hurry()
    slurm("launch", path, "--profile", profile(2), "--only", "parallel.shard=1", "--wait", rc=0)
    change = ("--set", "parallel.shard=8", "--profile", profile(2))
    slurm("retry", "tiny", "--outcome", "cancelled", *change, "--wait", rc=0)
    assert {row["outcome"] for row in rows()} == {"completed"}
    attempts = sorted(killed.parent.glob("attempt-*"))
    assert [manifest(attempt)["resumed_attempt"] for attempt in attempts] == [None, 1, 2]
    places = [nodes_of(attempt) for attempt in attempts]
    assert [(len(nodes), len({*nodes})) for nodes in places] == [(8, 4), (4, 4), (8, 4)]
    (alone,) = (losses(first) for first in root.glob("tiny/*/attempt-1") if first != killed)
    for attempt in attempts:
        curve = losses(attempt)
        assert [*curve] == [*range((manifest(attempt)["resumed_step"] or 0) + 1, max(curve) + 1)]
        # They add up the same numbers in another order: in float32 that made a difference of 2e-7 at most.
        assert curve == pytest.approx({step: alone[step] for step in curve}, rel=1e-5)
    assert max(losses(attempts[-1])) == 24


def test_one_of_sixteen_that_stops_ends_the_run_as_a_hang_and_is_named(
    slurm, study, root, rows, profile, daemons
):
    slurm("launch", study(ONE_RUN, base=SIXTEEN), "--profile", profile(), *FOR_EVER, rc=0, TURN_SECONDS="1")
    rank_0, attempt = trains(root)
    followers(attempt)[6].send_signal(signal.SIGSTOP)
    until((attempt / "result.json").exists)
    outcome, reason = told(attempt)
    node = manifest(attempt)["ranks"][6]["node"]
    hangs = f"hangs: nothing has moved for 120 s; rank 6 on {node} does not answer; rank"
    assert outcome == "failed" and reason.startswith(hangs)
    until(lambda: not daemons.ask("squeue", "-h"))
    assert not followers(attempt) and not rank_0.is_running()


def test_a_node_that_is_lost_takes_two_of_eight_with_it_and_the_run_goes_on_when_it_is_back(
    slurm, study, root, rows, profile, daemons, hurry
):
    slurm("launch", study(ONE_RUN, base=EIGHT), "--profile", profile(2), *LONGER, rc=0)
    _, attempt = trains(root)
    node = manifest(attempt)["ranks"][7]["node"]
    daemons.crash(node)
    hurry()
    until((attempt / "result.json").exists)
    outcome, reason = told(attempt)
    assert outcome == "node_failed"
    assert re.fullmatch(rf"rank [67] on {node}: both it and its Slurm task are gone", reason)
    daemons.start(f"slurmd.{node}")
    until(lambda: rows()[0]["outcome"] == "completed")
    assert nodes_of(attempt.with_name("attempt-2")) == sorted(NODES * 2)
