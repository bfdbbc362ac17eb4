"""A run of two processes on two nodes of a real Slurm cluster: it starts, ends and starts again as a whole."""

import json
import re
import signal

import psutil
import pytest

from model.record.folder import RunFolder
from runner.state import ledger
from tests.conftest import PACED, PATIENCE_SECONDS, TINY, until
from tests.faults.daemons import training
from tests.faults.test_files import SITE
from tests.slurm.test_cluster import SANDBOX
from tests.slurm.test_packing import adjusted

pytestmark = pytest.mark.slurm
TWO = TINY + "  parallel: {shard: 2}\n"
ONE_RUN = "matrix: {seed: [0]}\n"
# Most of a minute, until a test has it hurry.
LONGER, FOR_EVER = ("--set", "train.steps=1000"), ("--set", "train.steps=1000000")


@pytest.fixture
def profile(tmp_path):
    """The test cluster, one process a node."""
    (path := tmp_path / "spread.yaml").write_text(
        SANDBOX.read_text().replace("memory: 3GiB", "memory: 1GiB\nprocesses_per_node: 1")
    )
    return path


def trains(root):
    """Rank 0's process, and the attempt, once the run trains."""
    process, attempt = until(lambda: next(iter(training(root)), None))
    until((attempt / "steps.jsonl").exists)
    return process, attempt


def follower(attempt):
    """The process of rank 1."""
    for process in psutil.process_iter(["cmdline", "cwd"]):
        words = process.info["cmdline"] or []
        if "runner.job.ranks.follower" in words and process.info["cwd"] == str(attempt):
            return process
    return None


def manifest(attempt):
    return json.loads((attempt / "manifest.json").read_text())


def told(attempt):
    result = json.loads((attempt / "result.json").read_text())
    return result["outcome"], result["reason"]


def test_runs_of_two_processes_are_elements_of_one_array_on_two_nodes_each(
    slurm, study, root, rows, profile, daemons
):
    """Put back into the queue when all is done, their processes find nothing to do, and end."""
    slurm("launch", study("matrix: {seed: [0, 1]}\n", base=TWO), "--profile", profile, "--wait", rc=0)
    assert {row["outcome"] for row in rows()} == {"completed"}
    assert len({row["job_id"].partition("_")[0] for row in rows()}) == 1
    for attempt in root.glob("tiny/*/attempt-1"):
        first, second = (rank["node"] for rank in manifest(attempt)["ranks"])
        assert first != second
        assert manifest(attempt)["nodes"] == 2
        assert (attempt / f"ranks-{second}.log").exists()
    assert not list(root.glob("tiny/.submitit/*.meeting"))
    until(lambda: not daemons.ask("squeue", "-h"))
    daemons.ask("scontrol", "requeue", rows()[0]["job_id"])
    until(lambda: not daemons.ask("squeue", "-h"))
    assert len(list(root.glob("tiny/*/attempt-*"))) == 2


def test_a_run_that_the_cluster_has_too_few_nodes_for_is_named_when_it_is_launched(
    slurm, study, root, rows, profile
):
    """Slurm takes its job, and lets it wait for nodes that its partition does not have."""
    wide, options = study("matrix: {parallel.shard: [2, 8]}\n"), ("--set", "train.batch_size=8")
    stderr = slurm("launch", wide, "--profile", profile, *FOR_EVER, *options, rc=0).stderr
    (run_id,) = [row["run_id"] for row in rows() if row["factors"]["parallel.shard"] == 8]
    (warning,) = [line for line in stderr.splitlines() if run_id in line]
    assert "the partition has 4 nodes" in warning
    assert f"it never starts as asked: `runner cancel tiny/{run_id}` ends that" in warning


@pytest.mark.parametrize("rank", [0, 1])
def test_a_node_that_is_lost_before_the_first_step_gives_the_run_to_others(
    slurm, study, root, rows, profile, daemons, rank, hurry
):
    """Rank 0 asks for a next job, or Slurm puts the job back first, whichever notices sooner."""
    hurry()
    slurm("launch", study(ONE_RUN, base=TWO), "--profile", profile, *LONGER, rc=0, RANK_FAULT="1:1:wait")
    _, attempt = until(lambda: next(iter(training(root)), None))
    until(lambda: manifest(attempt)["ranks"])
    daemons.crash(manifest(attempt)["ranks"][rank]["node"])
    assert not (attempt / "steps.jsonl").exists()
    until(lambda: rows()[0]["outcome"] == "completed")
    attempts = RunFolder(attempt.parent).attempts()
    assert [record.settled[0] for record in attempts] == ["node_failed", "completed"]


@pytest.mark.parametrize("rank", [0, 1])
def test_the_node_that_crashed_is_named_and_a_retry_avoids_it(
    background, study, root, profile, daemons, cluster, tmp_path, rank, hurry
):
    """Slurm names all nodes of the job; for the other rank's, a retry starts before Slurm knows of the crash."""
    profile.write_text(f"{profile.read_text()}requeue: false\n")
    words = ["--root", root, "launch", study(ONE_RUN, base=TWO), "--profile", profile, "--wait", *LONGER]
    launcher = background("runner", *words, cwd=tmp_path, **cluster, **PACED)
    _, attempt = trains(root)
    node = manifest(attempt)["ranks"][rank]["node"]
    daemons.crash(node)
    hurry()
    _, stderr = launcher.communicate(PATIENCE_SECONDS)
    assert launcher.returncode == 0, stderr
    state = ledger.state(RunFolder(attempt.parent))
    (first, *_), retry = state.folder.attempts(), manifest(attempt.with_name("attempt-2"))
    assert (first.settled[0], state.outcome) == ("node_failed", "completed")
    assert re.match(rf"(node failure|rank 1) on {node}\b", first.settled[1])
    assert first.failed_nodes == {node}
    assert node not in [entry["node"] for entry in retry["ranks"]]
    scripts = [path.read_text() for path in (root / "tiny" / ".submitit").glob("*.sh")]
    assert any(f"#SBATCH --exclude={node}\n" in text for text in scripts)


def test_a_run_that_slurm_puts_back_into_the_queue_starts_again_with_all_its_processes(
    slurm, study, root, rows, profile, daemons, hurry
):
    slurm("launch", study(ONE_RUN, base=TWO), "--profile", profile, *LONGER, rc=0)
    first, attempt = trains(root)
    daemons.ask("scontrol", "requeue", rows()[0]["job_id"])
    first.wait(PATIENCE_SECONDS)
    hurry()
    until(lambda: rows()[0]["outcome"] == "completed")
    assert rows()[0]["attempt"] == 2
    assert len(manifest(attempt.with_name("attempt-2"))["ranks"]) == 2


def test_a_run_that_is_cancelled_saves_and_its_processes_end(slurm, study, root, rows, profile, daemons):
    path = study(ONE_RUN, base=TWO)
    slurm("launch", path, "--profile", profile, *FOR_EVER, rc=0)
    _, attempt = trains(root)
    slurm("cancel", path, rc=0)
    until(lambda: rows()[0]["outcome"] == "cancelled")
    assert (attempt / "checkpoint" / "meta.json").exists()
    until(lambda: not daemons.ask("squeue", "-h"))
    assert follower(attempt) is None


def test_if_rank_0_is_killed_it_is_named_and_the_other_ends(slurm, study, root, rows, profile, daemons):
    slurm("launch", study(ONE_RUN, base=TWO), "--profile", profile, *FOR_EVER, rc=0)
    first, attempt = trains(root)
    first.send_signal(signal.SIGKILL)
    until(lambda: rows()[0]["outcome"] == "failed")
    node = manifest(attempt)["ranks"][0]["node"]
    assert rows()[0]["reason"].startswith(f"rank 0 on {node}: killed by SIGKILL (Slurm: FAILED, ")
    until(lambda: not daemons.ask("squeue", "-h"))
    assert follower(attempt) is None


def test_if_rank_0_stops_another_node_says_so_and_srun_ends_the_job(
    slurm, study, root, rows, profile, daemons
):
    slurm("launch", study(ONE_RUN, base=TWO), "--profile", profile, *FOR_EVER, rc=0, TURN_SECONDS="1")
    first, attempt = trains(root)
    node, neighbour = (rank["node"] for rank in manifest(attempt)["ranks"])
    first.suspend()
    until(lambda: rows()[0]["outcome"] == "failed")
    reason = (
        f"hangs: nothing has moved for 120 s; rank 0 on {node} does not answer; rank 1 on {neighbour} waits"
    )
    assert rows()[0]["reason"].startswith(reason)
    until(lambda: not daemons.ask("squeue", "-h"))
    assert not first.is_running()
    assert follower(attempt) is None
    assert (rows()[0]["outcome"], rows()[0]["attempt"]) == ("failed", 1)
    assert rows()[0]["reason"].startswith(reason), "also if rank 0 heard of it when srun ended it"


def test_if_rank_0_is_killed_before_the_others_find_it_they_end_and_the_run_beside_it_goes_on(
    slurm, study, root, rows, tmp_path
):
    """Slurm leaves them alone where runs share a job: here two runs of two processes a node."""
    fault = {"PYTHONPATH": str(SITE), "FAULT_FILE": r"\.meeting$", "FAULT_ROOT": str(root), "FAULT": "kill"}
    path = study("matrix: {seed: [0, 1]}\n", base=TWO)
    packed = adjusted(tmp_path, ("gpus_per_node: 2", "gpus_per_node: 4"), ("memory: 1GiB", "memory: 512MiB"))
    slurm("launch", path, "--profile", packed, "--wait", rc=1, **fault)
    killed, other = sorted(rows(), key=lambda row: row["outcome"] == "completed")
    assert other["outcome"] == "completed"
    assert killed["job_id"] == other["job_id"], "they shared a job"
    assert killed["outcome"] == "failed"
    assert re.match(r"rank 0 on n\d: killed by SIGKILL \(Slurm: FAILED, ", killed["reason"])


def test_a_rehearsal_starts_the_processes_on_their_nodes(slurm, study, root, profile, daemons):
    slurm("launch", study(ONE_RUN, base=TWO), "--profile", profile, "--rehearse", rc=0)
    assert not list(root.glob("tiny/*/run.json"))
    (attempt,) = root.glob("tiny.rehearsal/*/attempt-1")
    assert len({rank["node"] for rank in manifest(attempt)["ranks"]}) == 2
    assert [json.loads(line)["step"] for line in (attempt / "steps.jsonl").read_text().splitlines()] == [1, 2]
