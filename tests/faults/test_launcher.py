"""The launcher is killed at every step between claim and the last rename: no run is lost, none runs twice."""

import os
import signal

import pytest

from tests.conftest import PATIENCE_SECONDS, REPOSITORY, until
from tests.slurm.test_cluster import SANDBOX
from tests.slurm.test_packing import PACKED

pytestmark = pytest.mark.slurm
STUDY = "matrix: {seed: [0, 1]}\n"
LAUNCHER = [
    "model.record.files:write_text before 1",
    "model.record.files:write_text after 2",
    "runner.state.ledger:claim before 1",
    "runner.state.ledger:_append before 1",  # the claim is there, its line in the ledger is not
    "runner.state.ledger:claim after 1",
    "runner.state.ledger:claim after 2",
    "runner.state.ledger:record_intent after 1",
    "runner.state.ledger:record_intent after 2",
    "runner.state.ledger:flush after 1",
    "submitit.slurm.slurm:SlurmExecutor._make_submission_file_text after 1",
    "runner.execute.slurm.client:parse_job_id before 1",  # after sbatch
    "submitit.core.utils:JobPaths.move_temporary_file after 1",
    "runner.state.ledger:record_job after 1",
    "runner.state.ledger:record_job after 2",
]


@pytest.fixture
def killed_launch(process, root, cluster):
    """Launch a study and kill the launcher at a chosen instant."""

    def launch(fault, path, profile=SANDBOX):
        answer = process(
            "tests.faults.killer", *fault.split(), "--root", root, "launch", path, "--profile", profile,
            cwd=REPOSITORY, **cluster,
        )  # fmt: skip
        assert answer.returncode == -signal.SIGKILL, f"the fault did not strike: {answer.stderr}"

    return launch


@pytest.mark.parametrize("fault", LAUNCHER)
def test_a_launcher_killed_at_any_step_loses_nothing_and_a_relaunch_does_what_is_left(
    slurm, killed_launch, study, root, rows, fault
):
    path = study(STUDY)
    killed_launch(fault, path)
    slurm("launch", path, "--profile", SANDBOX, "--wait", rc=0)
    assert [row["outcome"] for row in rows()] == ["completed"] * 2
    counts = [len(list(run.glob("attempt-*/steps.jsonl"))) for run in (root / "tiny").glob("[0-9a-f]*")]
    assert counts == [1, 1], "each run trained once"
    assert "0 submitted" in slurm("launch", path, "--profile", SANDBOX, "--wait", rc=0).stderr


@pytest.mark.parametrize(
    "fault",
    [
        "runner.state.ledger:record_intent after 1",
        "runner.execute.slurm.client:parse_job_id before 1",
        "submitit.core.utils:JobPaths.move_temporary_file after 1",
        "runner.state.ledger:record_job after 1",
    ],
)
def test_runs_that_share_a_job_are_found_again_together(slurm, killed_launch, study, root, rows, fault):
    path = study("matrix: {seed: [0, 1, 2]}\n")
    killed_launch(fault, path, PACKED)
    slurm("launch", path, "--profile", PACKED, "--wait", rc=0)
    assert [row["outcome"] for row in rows()] == ["completed"] * 3
    assert len(list(root.glob("tiny/*/attempt-*/steps.jsonl"))) == 3, "each run trained once"


def test_two_launches_at_once_submit_nothing_twice(background, cluster, study, root, rows):
    command = ["--root", root, "launch", study(STUDY), "--profile", SANDBOX, "--wait"]
    launches = [background("runner", *command, cwd=REPOSITORY, **cluster) for _ in range(2)]
    assert [launch.wait(timeout=PATIENCE_SECONDS) for launch in launches] == [0, 0]
    assert [row["outcome"] for row in rows()] == ["completed"] * 2
    assert len(list(root.glob("tiny/*/attempt-*"))) == 2


def stand_in(folder, name, script):
    """Puts a program of this name in front of the real one."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}:/usr/sbin"}


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo 'sbatch: error: Batch job submission failed: Invalid account' >&2; exit 1", "Invalid account"),
        ("echo 'sbatch: error: QOSMaxSubmitJobPerUserLimit' >&2; exit 1", "launch again later"),
        ("echo 'nonsense'", "sbatch"),
        ("kill -9 $$", ""),
    ],
)
def test_an_sbatch_that_refuses_leaves_every_run_to_be_launched(
    slurm, study, rows, tmp_path, script, message
):
    path = study(STUDY)
    refused = slurm(
        "launch", path, "--profile", SANDBOX, rc=3, **stand_in(tmp_path / "bin", "sbatch", script)
    )
    assert message in refused.stderr
    assert [row["phase"] for row in rows()] == ["planned"] * 2
    slurm("launch", path, "--profile", SANDBOX, "--wait", rc=0)
    assert [(row["outcome"], row["attempt"]) for row in rows()] == [("completed", 1)] * 2


def test_a_submit_limit_is_met_with_smaller_arrays(slurm, study, root, rows, tmp_path):
    """A stand-in refuses arrays of more than two elements, as a full queue does."""
    path = study("matrix: {seed: [0, 1, 2, 3]}\n")
    script = (
        'if grep -qE "array=0-[2-9]" "$1"; then echo "sbatch: error: QOSMaxSubmitJobPerUserLimit" >&2; exit 1; fi\n'
        'exec /usr/bin/sbatch "$@"'
    )
    slurm(
        "launch", path, "--profile", SANDBOX, "--wait", rc=0, **stand_in(tmp_path / "bin", "sbatch", script)
    )
    assert [(row["outcome"], row["attempt"]) for row in rows()] == [("completed", 1)] * 4


def test_while_accounting_is_down_nothing_is_called_ended_that_might_not_be(slurm, study, rows, tmp_path):
    path = study("matrix: {train.steps: [1000000]}\n")
    slurm("launch", path, "--profile", SANDBOX, rc=0)
    down = stand_in(tmp_path / "bin", "sacct", "echo 'sacct: error: slurmdbd is down' >&2; exit 1")
    until(lambda: rows()[0]["phase"] == "running")
    status = slurm("status", "--json", rc=0, **down)
    assert '"running"' in status.stdout
    assert "slurmdbd is down" in status.stderr
    slurm("cancel", path, rc=0)
    until(lambda: rows()[0]["outcome"] == "cancelled")
