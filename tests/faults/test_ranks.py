"""A process of a run on this machine fails: the attempt ends on all of them, with the outcome that is true of it."""

import contextlib
import json
import re
import signal
import time

import psutil
import pytest

from runner.job.ranks.meeting import node_name
from tests.conftest import PACED, PATIENCE_SECONDS, TINY, until
from tests.faults.daemons import GONE, training
from tests.faults.test_files import SITE

TWO = TINY + "  parallel: {shard: 2}\n"
FOR_EVER = "matrix: {train.steps: [1000000]}\n"


@pytest.fixture
def launch(background, study, root, tmp_path):
    """Start a launch of one run of two processes, and go on."""
    path = study(FOR_EVER, base=TWO)
    return lambda **env: background("runner", "--root", root, "launch", path, cwd=tmp_path, **PACED, **env)


def result(root, attempt=1):
    (path,) = root.glob(f"tiny/*/attempt-{attempt}/result.json")
    return json.loads(path.read_text())


def both(root):
    """The processes of a run, rank 0 first, once both train."""
    (first, attempt), *_ = until(lambda: training(root))
    until((attempt / "steps.jsonl").exists)
    return first, *followers(first)


def stands_still(path):
    """Whether a file does not grow for ten records' time."""
    size = path.stat().st_size
    time.sleep(10 * float(PACED["PACE_SECONDS"]))
    return path.stat().st_size == size


def followers(first):
    return [child for child in first.children() if "runner.job.ranks.follower" in child.cmdline()]


def test_a_run_of_two_processes_completes_and_says_where_they_were(runner, root, study):
    runner("launch", study("matrix: {seed: [0]}\n", base=TWO), rc=0)
    (attempt,) = root.glob("tiny/*/attempt-1")
    manifest = json.loads((attempt / "manifest.json").read_text())
    assert result(root)["outcome"] == "completed"
    assert [set(rank) for rank in manifest["ranks"]] == [{"node", "gpu_uuid"}] * 2
    assert len((attempt / "steps.jsonl").read_text().splitlines()) == 4, "rank 0 alone writes"
    assert [path.name for path in attempt.glob("ranks-*.log")] == [f"ranks-{manifest['host']}.log"]


def test_a_run_on_this_machine_is_no_part_of_the_job_that_it_is_launched_in(runner, root, study):
    """Of four nodes, and over by now: `salloc` leaves such a shell."""
    job = {"JOB_ID": "77", "JOB_NUM_NODES": "4", "JOB_END_TIME": "100"}
    runner(
        "launch", study("matrix: {seed: [0]}\n", base=TWO), rc=0, SLURMD_NODENAME="nowhere",
        **{f"SLURM_{name}": value for name, value in job.items()},
    )  # fmt: skip
    (path,) = root.glob("tiny/*/attempt-1/manifest.json")
    assert json.loads(path.read_text())["nodes"] == 1


@pytest.mark.parametrize("rank", [0, 1])
def test_one_process_that_runs_out_of_memory_is_named_with_what_it_asked_for(launch, root, rank):
    launcher = launch(RANK_FAULT=f"{rank}:3:oom")
    assert launcher.wait(PATIENCE_SECONDS) == 1
    record = result(root)
    assert record["outcome"] == "oom_gpu"
    assert (
        record["reason"] == f"rank {rank} on {node_name()}: CUDA out of memory. Tried to allocate 20.00 GiB."
    )
    assert record["requested_bytes"] == 20 * 2**30
    if rank:
        assert "OutOfMemoryError" in next(root.glob("tiny/*/attempt-1/ranks-*.log")).read_text()


def test_the_cause_is_told_where_what_a_process_prints_goes_to_a_full_disk(launch, root):
    assert launch(RANK_FAULT="1:3:oom unheard").wait(PATIENCE_SECONDS) == 1
    assert result(root)["outcome"] == "oom_gpu"
    assert result(root)["reason"].startswith("rank 1 on ")
    assert "OutOfMemoryError" not in next(root.glob("tiny/*/attempt-1/ranks-*.log")).read_text()


@pytest.mark.parametrize("stuck", [False, True], ids=["", "while the first is stuck"])
def test_a_process_that_is_killed_ends_the_run(launch, root, stuck):
    launcher = launch()
    first, second = both(root)
    if stuck:
        second.suspend()  # so that the first waits for it
    second.kill()
    assert launcher.wait(PATIENCE_SECONDS) == 1
    record = result(root)
    assert (record["outcome"], record["reason"].partition(": ")[2]) == ("failed", "killed by SIGKILL")
    assert record["reason"].startswith("rank 1 on ")
    assert not first.is_running()


def test_if_rank_0_is_killed_the_others_end_and_the_queue_says_how(launch, root, rows):
    launcher = launch()
    first, second = both(root)
    first.kill()
    assert launcher.wait(PATIENCE_SECONDS) == 1
    (row,) = rows()
    assert (row["outcome"], row["reason"]) == ("failed", f"rank 0 on {node_name()}: killed by SIGKILL")
    with contextlib.suppress(*GONE):
        second.wait(PATIENCE_SECONDS)


def nobody(*processes):
    """Whether all of them have ended."""
    return not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in processes)


# Sums on GPUs vary in their last bits, so it learns slowly.
ON_TWO_GPUS = re.sub(
    r"model: {.*}",
    "model: {dim: 512, layers: 4, heads: 8, kv_heads: 2, ffn_dim: 1024, vocab_size: 300}",
    TWO.replace("device: cpu", "device: cuda\n  attention: math").replace("steps: 6", "steps: 200"),
).replace("learning_rate: 1e-2", "learning_rate: 1e-4")


@pytest.mark.trains
@pytest.mark.parametrize("rank", [pytest.param(rank, marks=pytest.mark.gpu(2)) for rank in (0, 1)])
def test_a_run_one_of_whose_processes_was_killed_goes_on_to_the_loss_of_a_run_that_was_not(
    background, runner, study, root, tmp_path, rank
):
    """On a CPU, `test_many_processes` has one of four killed."""
    (profile := tmp_path / "often.yaml").write_text(
        "executor: local\ncheckpoint_every: 0:00:01\ngpus: 1\ngpus_per_node: 2\n"
    )
    path = study("matrix: {seed: [0]}\nrepeats: 2\n", base=ON_TWO_GPUS)
    command = ["runner", "--root", root, "launch", path, "--profile", profile, "--only", "repeat=1"]
    launcher = background(*command, cwd=tmp_path)
    processes = both(root)
    until(lambda: list(root.glob("tiny/*/attempt-1/checkpoint/meta.json")))
    processes[rank].kill()
    assert launcher.wait(PATIENCE_SECONDS) == 1
    (row,) = json.loads(runner("status", "tiny", "--json", rc=0).stdout)
    assert (row["outcome"], row["reason"].partition(": ")[2]) == ("failed", "killed by SIGKILL")
    assert row["reason"].startswith(f"rank {rank} on ")
    until(lambda: nobody(*processes))
    runner("retry", "tiny", rc=0)
    runner("launch", path, "--profile", profile, rc=0)
    first, second = json.loads(runner("status", "tiny", "--json", rc=0).stdout)
    assert (first["attempt"], second["attempt"]) == (2, 1)
    (manifest,) = root.glob("tiny/*/attempt-2/manifest.json")
    assert json.loads(manifest.read_text())["resumed_step"] > 0
    assert first["loss"] == pytest.approx(second["loss"], rel=1e-3)


OFTEN = {
    "TURN_SECONDS": "1"
}  # so that two minutes pass in 24 s; who is not stopped runs at least once a second


@pytest.mark.parametrize("ranks", [2, 4])
def test_if_rank_0_stops_another_process_says_so_and_ends_it(background, study, root, tmp_path, rows, ranks):
    base = TINY.replace("batch_size: 2", "batch_size: 4") + f"  parallel: {{shard: {ranks}}}\n"
    path = study(FOR_EVER, base=base)
    launcher = background("runner", "--root", root, "launch", path, cwd=tmp_path, **PACED, **OFTEN)
    first, *others = both(root)
    first.suspend()
    assert launcher.wait(PATIENCE_SECONDS) == 1
    (row,) = rows()
    assert row["outcome"] == "failed"
    reason = f"hangs: nothing has moved for 120 s; rank 0 on {node_name()} does not answer; rank "
    assert row["reason"].startswith(reason)
    assert "waits for the others after step" in row["reason"]
    until(lambda: nobody(first, *others))


def test_a_run_whose_rank_0_stopped_at_a_record_goes_on_when_it_is_tried_again(runner, study, root, rows):
    fault = {"PYTHONPATH": str(SITE), "FAULT_FILE": "steps.jsonl", "FAULT_ROOT": str(root), "FAULT": "stop"}
    runner("launch", study("matrix: {seed: [0]}\n", base=TWO), rc=1, **fault, **OFTEN)
    assert rows()[0]["reason"].startswith(
        f"hangs: nothing has moved for 120 s; rank 0 on {node_name()} does not answer; rank 1 on {node_name()} waits"
    )
    runner("retry", "tiny", rc=0)
    assert (rows()[0]["outcome"], rows()[0]["attempt"]) == ("completed", 2)


@pytest.mark.parametrize("earlier", [0, 1], ids=["", "after it has resumed"])
def test_a_run_that_hangs_can_be_told_to_end_and_says_where(launch, root, earlier):
    if earlier:
        launcher = launch()
        both(root)
        launcher.send_signal(signal.SIGINT)
        assert launcher.wait(PATIENCE_SECONDS) == 130
    launcher = launch()
    first, second = both(root)
    second.suspend()
    (records,) = root.glob(f"tiny/*/attempt-{earlier + 1}/steps.jsonl")
    until(lambda: stands_still(records))  # what both had begun is done
    first.terminate()
    assert launcher.wait(PATIENCE_SECONDS) == 1
    record = result(root, earlier + 1)
    assert record["outcome"] == "cancelled"
    assert f"rank 1 on {node_name()} does not answer" in record["reason"]
    match = re.search(rf"rank 0 on {node_name()} .+ after step (\d+), at ", record["reason"])
    assert int(match[1]) >= record["steps"] > (result(root)["steps"] if earlier else 0)


def test_a_run_that_is_cancelled_saves_in_all_processes_and_goes_on_from_there(
    launch, root, runner, tmp_path
):
    launcher = launch()
    _, second = both(root)
    launcher.send_signal(signal.SIGINT)
    assert launcher.wait(PATIENCE_SECONDS) == 130
    record = result(root)
    assert record["outcome"] == "cancelled"
    assert "a checkpoint was saved at step" in record["reason"]
    assert not second.is_running()
    successor = launch()
    until(lambda: list(root.glob("tiny/*/attempt-2/steps.jsonl")))
    manifest = json.loads(next(root.glob("tiny/*/attempt-2/manifest.json")).read_text())
    assert manifest["resumed_attempt"] == 1
    assert manifest["resumed_step"] == record["steps"]
    successor.send_signal(signal.SIGINT)
    assert successor.wait(PATIENCE_SECONDS) == 130


@pytest.mark.parametrize("ranks", [[0], [1], [0, 1]], ids=str)
@pytest.mark.parametrize("by", ["cancel", "SIGINT"])
def test_a_run_whose_processes_were_stopped_is_cancelled_with_a_checkpoint(launch, root, runner, by, ranks):
    launcher = launch()
    first, second = both(root)
    for rank in ranks:
        (first, second)[rank].suspend()
    if by == "cancel":
        runner("cancel", "tiny", rc=0)
    else:
        launcher.send_signal(signal.SIGINT)
    assert launcher.wait(PATIENCE_SECONDS) == (1 if by == "cancel" else 130)
    assert result(root)["outcome"] == "cancelled"
    assert "a checkpoint was saved at step" in result(root)["reason"]
    until(lambda: nobody(first, second))


def test_a_process_that_is_told_to_end_stops_all_of_them_after_a_checkpoint(launch, root):
    launcher = launch()
    _, second = both(root)
    psutil.Process(second.pid).terminate()
    assert launcher.wait(PATIENCE_SECONDS) == 1
    assert (result(root)["outcome"], "a checkpoint was saved" in result(root)["reason"]) == (
        "cancelled",
        True,
    )


@pytest.mark.trains
def test_a_disk_that_is_full_for_one_process_alone_fails_a_run_that_must_save_and_names_the_process(
    launch, root
):
    launcher = launch(
        PYTHONPATH=str(SITE), FAULT_FILE=r"-1\.safetensors", FAULT_ROOT=str(root), FAULT="refuse"
    )
    _, second = both(root)
    launcher.send_signal(signal.SIGINT)
    assert launcher.wait(PATIENCE_SECONDS) == 130
    record = result(root)
    assert record["outcome"] == "failed"
    assert "No space left on device (rank 1)" in record["reason"]
    assert not second.is_running()
    assert not list(root.glob("tiny/*/attempt-1/checkpoint"))


def test_a_rehearsal_of_several_processes_starts_all_of_them(runner, root, study):
    runner("launch", study("matrix: {seed: [0]}\n", base=TWO), "--rehearse", rc=0)
    assert not list(root.glob("tiny/*/run.json"))
    (attempt,) = root.glob("tiny.rehearsal/*/attempt-1")
    assert len(json.loads((attempt / "manifest.json").read_text())["ranks"]) == 2
    assert [json.loads(line)["step"] for line in (attempt / "steps.jsonl").read_text().splitlines()] == [1, 2]


@pytest.mark.trains
def test_processes_that_were_started_train_with_compiled_blocks_as_one_process_does(runner, root, study):
    runner("launch", study("zip: [{parallel.shard: [1, 2], train.compile: [false, true]}]\n"), rc=0)
    records = {
        json.loads((path.parent.parent / "run.json").read_text())["factors"]["parallel.shard"]: json.loads(
            path.read_text()
        )
        for path in root.glob("tiny/*/attempt-1/result.json")
    }
    assert {record["outcome"] for record in records.values()} == {"completed"}
    slowest = {
        count: json.loads(runner("explain", record["run_id"], "--json", rc=0).stdout)["attempts"][0][
            "slowest"
        ]
        for count, record in records.items()
    }
    assert slowest[1] is None
    assert re.match(rf"rank [01] on {node_name()} was slowest in \d of 3 intervals, by ", slowest[2])
    assert records[2]["final_loss"] == pytest.approx(records[1]["final_loss"], rel=1e-4)
