"""The disk is full or read-only, files are torn, permissions are odd: what was there before stays right."""

import contextlib
import json
import os
import signal
import socket
import subprocess

import psutil
import pytest

from runner.state.code import snapshot
from tests.analysis.fabricate import Folder, plan
from tests.conftest import PATIENCE_SECONDS, REPOSITORY, TINY, environment, until

TWO = TINY + "  parallel: {shard: 2}\n"


@pytest.fixture
def small_disk(tmp_path, root):
    """A root on a filesystem of its own with little room; gives a function that fills it up."""
    if os.geteuid():
        pytest.skip("mounting needs root")
    root.mkdir()
    code = sum(len(text) // 4096 + 1 for text in snapshot.sources().values()) * 4096
    size = f"size={code + 2**20}"  # room for a snapshot of the code, and little more
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "none", root], check=True)

    def fill():
        descriptor = os.open(root / "ballast", os.O_WRONLY | os.O_CREAT)
        with contextlib.suppress(OSError):
            while True:
                os.write(descriptor, b"x" * 4096)
        os.close(descriptor)

    yield fill
    subprocess.run(["umount", "-l", root], check=True)


def outcomes(runner):
    return [row["outcome"] or row["phase"] for row in json.loads(runner("status", "--json", rc=0).stdout)]


def test_a_full_disk_refuses_a_launch_and_nothing_is_half_planned(runner, study, small_disk, root):
    path = study("matrix: {seed: [0, 1]}\n")
    small_disk()
    refused = runner("launch", path, rc=2)
    assert "No space left" in refused.stderr
    assert "Traceback" not in refused.stderr
    (root / "ballast").unlink()
    runner("launch", path, rc=0)
    assert outcomes(runner) == ["completed"] * 2


def test_a_disk_that_fills_up_while_a_run_trains_fails_the_run_and_says_so(runner, study, small_disk, root):
    path = study("order: as written\nmatrix: {train.steps: [200000, 5]}\n")
    launch = runner("launch", path, "--set", "train.log_every=1")
    assert launch.returncode != 0
    assert "No space left" in launch.stderr
    assert "Traceback" not in launch.stderr
    (log,) = [file for file in root.glob("tiny/*/attempt-1/steps.jsonl") if file.stat().st_size > 10_000]
    lines = log.read_text().splitlines()[:-1]
    assert [json.loads(line)["step"] for line in lines] == list(range(1, len(lines) + 1)), (
        "what was there stays right"
    )
    log.unlink()  # room
    runner("launch", path, "--only", "train.steps=5", rc=0)
    assert "completed" in outcomes(runner)


def test_a_disk_that_fills_up_while_several_processes_train_fails_their_run_and_leaves_none_of_them(
    runner, study, small_disk, root
):
    path = study("matrix: {train.steps: [200000]}\n", base=TWO)
    launch = runner("launch", path, "--set", "train.log_every=1", rc=1)
    assert "rank 0 on" in launch.stderr and "could not write its result: is its disk full?" in launch.stderr
    assert "Traceback" not in launch.stderr
    (log,) = root.glob("tiny/*/attempt-1/steps.jsonl")
    until(lambda: str(log.parent) not in [process.info["cwd"] for process in psutil.process_iter(["cwd"])])
    log.unlink()  # room
    assert outcomes(runner) == ["failed"]
    runner("launch", study("matrix: {train.steps: [5]}\n", base=TWO), rc=0)
    assert "completed" in outcomes(runner)


def test_on_a_full_disk_runs_can_be_seen_and_room_can_be_made_although_a_run_needs_a_repair(
    runner, small_disk, root
):
    folder = Folder(root, plan("r1", study="tiny"))
    folder.event("claimed", executor="local", host=socket.gethostname(), pid=1, pid_started=1.0)
    folder.start()
    with (folder.path / "ledger.jsonl").open("a") as ledger:
        ledger.write("\n" * (4096 - ledger.tell() % 4096))  # no room is left in its last block
    small_disk()
    for verb in ("status", "gc"):
        answer = runner(verb, rc=0)
        reason = "No space left on device; `ended` of attempt 1 was not recorded; until that can be done"
        assert f"{folder.path}: {reason}" in answer.stderr
    assert outcomes(runner) == ["running"]
    (root / "ballast").unlink()
    assert outcomes(runner) == ["lost"]


def test_a_read_only_root_is_refused(runner, study, small_disk, root):
    runner("launch", study(), rc=0)
    subprocess.run(["mount", "-o", "remount,ro", root], check=True)
    path, reason = study("matrix: {seed: [7]}\n"), f"{root / 'tiny'}: Read-only file system; choose another"
    assert f"a launch would be refused: {reason}" in runner("launch", path, "--dry-run", rc=0).stderr
    refused = runner("launch", path, rc=2)
    assert reason in refused.stderr
    assert "Traceback" not in refused.stderr
    assert outcomes(runner) == ["completed"], "what is there can still be seen"


@pytest.mark.parametrize("content", [b"", b'{"schema_version": 1, "run', b"\x00" * 100])
def test_a_torn_plan_is_named_and_the_other_runs_go_on(runner, study, root, content):
    path = study("matrix: {seed: [0, 1]}\n")
    runner("launch", path, rc=0)
    torn = next(root.glob("tiny/*/run.json"))
    torn.write_bytes(content)
    assert len(outcomes(runner)) == 1
    assert str(torn) in runner("launch", path, rc=2).stderr
    runner("collect", rc=0)
    rows = json.loads(
        runner(
            "sql", "select path, (select count(*) from runs) as n from quarantine", "--format", "json", rc=0
        ).stdout
    )
    assert rows[0]["n"] == 1
    assert rows[0]["path"].endswith("run.json")


def test_a_torn_checkpoint_is_not_used_and_the_manifest_says_so(runner, background, study, root):
    path = study("matrix: {train.steps: [1000]}\n")
    kill_after_first_checkpoint(background, path, root)
    for file in root.glob("tiny/*/attempt-1/checkpoint/*"):
        file.write_bytes(file.read_bytes()[:-7])
    runner("launch", path, "--set", "train.log_every=10", rc=0)
    manifest = json.loads(next(root.glob("tiny/*/attempt-2/manifest.json")).read_text())
    assert manifest["resumed_attempt"] is None
    assert "checkpoint" in manifest["not_resumed"]
    assert outcomes(runner) == ["completed"]


def kill_after_first_checkpoint(background, path, root):
    """Leaves a run with an attempt that was stopped and kept a checkpoint."""
    command = ["--root", root, "launch", path, "--set", "train.log_every=10"]
    launch = background("runner", *command, cwd=path.parent, PACE_SECONDS="0.5")
    until(lambda: list(root.glob("tiny/*/attempt-1/steps.jsonl")), 0.02)
    launch.send_signal(signal.SIGINT)
    launch.wait(timeout=PATIENCE_SECONDS)
    assert list(root.glob("tiny/*/attempt-1/checkpoint")), "the run was stopped with a checkpoint"


@pytest.mark.parametrize("mask", [0o077, 0o002])
def test_any_umask_gives_a_root_that_works(runner, study, root, mask):
    path = study()
    process = subprocess.run(
        ["sh", "-c", f"umask {mask:04o}; exec {os.sys.executable} -P -m runner --root {root} launch {path}"],
        cwd=path.parent, env=environment(), capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    runner("collect", rc=0)
    assert outcomes(runner) == ["completed"]


@pytest.mark.slurm
def test_a_submitit_folder_that_others_can_write_is_refused(slurm, study, root):
    """Whoever can write a batch script there runs code as its owner."""
    (root / "tiny" / ".submitit").mkdir(parents=True)
    (root / "tiny" / ".submitit").chmod(0o777)
    sandbox = REPOSITORY / "tests" / "slurm" / "sandbox.yaml"
    refused = slurm("launch", study(), "--profile", sandbox, rc=2)
    assert "writable by others" in refused.stderr
