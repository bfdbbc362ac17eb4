"""Jobs, step daemons and nodes are killed, requeued and run out of time: the outcomes are true, the runs go on."""

import contextlib
import json
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from model.record.folder import RunFolder
from tests.conftest import PATIENCE_SECONDS, until
from tests.faults.daemons import Daemons
from tests.faults.test_files import SITE
from tests.slurm.test_cluster import SANDBOX, training

pytestmark = pytest.mark.slurm
LONG = "matrix: {train.steps: [1000000]}\n"
# It trains for most of a minute, or until a test is done with it and has it hurry.
MIDDLING = "matrix: {train.steps: [1000]}\n"
LONGER = "matrix: {train.steps: [400]}\n"


def attempts(root, name="tiny"):
    """Outcome of each attempt of the only run, by number, from its own files and ledger."""
    (path,) = [path for path in (root / name).glob("[0-9a-f]*") if path.is_dir()]
    return {attempt.number: (attempt.settled or (None,))[0] for attempt in RunFolder(path).attempts()}


def steps(root, name="tiny"):
    """Every step that the run's records cover, in order of attempts."""
    numbers = []
    for path in sorted(
        root.glob(f"{name}/*/attempt-*/steps.jsonl"), key=lambda path: int(path.parent.name.split("-")[1])
    ):
        for line in path.read_text().splitlines():
            record = json.loads(line)
            numbers += range(record["step"] - record["steps"] + 1, record["step"] + 1)
    return numbers


def test_a_killed_step_daemon_is_not_success(slurm, study, root, rows):
    slurm("launch", study(LONG), "--profile", SANDBOX, rc=0)
    job = until(lambda: training(root))
    daemons = [parent for parent in job.parents() if parent.name().startswith("slurmstepd")]
    assert daemons
    daemons[0].kill()
    job.kill()
    until(lambda: rows()[0]["phase"] == "ended")
    assert rows()[0]["outcome"] in ("failed", "node_failed", "lost")


def test_a_requeued_job_goes_on_as_a_new_attempt(slurm, study, root, rows, hurry):
    path = study(MIDDLING)
    slurm("launch", path, "--profile", SANDBOX, rc=0)
    job = until(lambda: training(root))
    job_id = rows()[0]["job_id"]
    slurm_command("scontrol", "requeue", job_id)
    job.wait(PATIENCE_SECONDS)
    hurry()
    until(lambda: rows()[0]["outcome"] == "completed")
    assert rows()[0]["attempt"] == 2
    assert rows()[0]["job_id"] == job_id, "it is the same job"
    assert len(list(root.glob("tiny/*/attempt-*"))) == 2


def test_a_job_that_is_requeued_before_its_attempt_said_where_it_runs_goes_on_as_a_new_attempt(
    slurm, study, root, rows, hurry
):
    hurry()
    fault = {"FAULT_FILE": r"attempt-1/\.manifest", "FAULT_ROOT": str(root), "FAULT": "stop"}
    slurm("launch", study(MIDDLING), "--profile", SANDBOX, rc=0, PYTHONPATH=str(SITE), **fault)
    until(Path(f"{root}.struck").exists)
    slurm_command("scontrol", "requeue", rows()[0]["job_id"])
    until(lambda: rows()[0]["outcome"] == "completed")
    assert attempts(root) in [{1: first, 2: "completed"} for first in ("lost", "cancelled")]


def test_a_node_that_fails_gives_its_job_to_another(slurm, study, root, rows, hurry):
    slurm("launch", study(MIDDLING), "--profile", SANDBOX, rc=0)
    job = until(lambda: training(root))
    node = json.loads(next(root.glob("tiny/*/attempt-1/manifest.json")).read_text())["slurm"][
        "SLURMD_NODENAME"
    ]
    try:
        slurm_command("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
        job.wait(PATIENCE_SECONDS)
        hurry()
        until(lambda: rows()[0]["outcome"] == "completed")
    finally:
        # It may have come back by itself: then Slurm refuses.
        subprocess.run(["scontrol", "update", f"nodename={node}", "state=resume"], check=False)
    assert rows()[0]["attempt"] == 2
    assert attempts(root)[1] == "node_failed"
    manifest = json.loads(next(root.glob("tiny/*/attempt-2/manifest.json")).read_text())
    assert manifest["slurm"]["SLURMD_NODENAME"] != node


def test_the_time_limit_of_the_queue_ends_no_run_that_can_go_on(slurm, study, root, rows, tmp_path):
    """Four runs at once, since the shortest limit is a minute: two go on, by requeue and in a new job, one may not,
    one hangs.

    The first three sleep until their limit is near: nothing is gained by a minute of training.
    """
    short = SANDBOX.read_text().replace("time_limit: 0:10:00", "time_limit: 0:01:00")
    (going := tmp_path / "going.yaml").write_text(short)
    (moving := tmp_path / "moving.yaml").write_text(short + "requeue: false\n")
    (staying := tmp_path / "staying.yaml").write_text(short + "chain: false\n")
    asleep = {}
    for name, extra, profile in (
        ("goes", LONGER, going),
        ("moves", LONGER, moving),
        ("stays", LONG, staying),
        ("hangs", LONG, staying),
    ):
        slurm("launch", study(extra, name), "--profile", profile, rc=0)
        asleep[name] = until(lambda: training(root, name))  # noqa: B023  asked at once
        asleep[name].send_signal(signal.SIGSTOP)

    def over():
        # Slurm wakes a job before it signals it: what hangs is stopped again and again.
        with contextlib.suppress(psutil.NoSuchProcess):
            asleep["hangs"].send_signal(signal.SIGSTOP)
        for name in ("goes", "moves", "stays"):
            with contextlib.suppress(psutil.NoSuchProcess):  # Slurm has woken it, and it has ended
                if name in asleep and time.time() - asleep[name].create_time() > 45:
                    asleep.pop(name).send_signal(signal.SIGCONT)
        table = rows()
        return all(row["phase"] == "ended" for row in table) and table

    endings = {row["study"]: row for row in until(over)}
    assert {name: row["outcome"] for name, row in endings.items()} == {
        "goes": "completed", "moves": "completed", "stays": "timeout", "hangs": "timeout",
    }  # fmt: skip
    assert "checkpoint was saved at step" in endings["stays"]["reason"]
    assert list(root.glob("stays/*/attempt-1/checkpoint"))
    for name in ("goes", "moves"):
        history = attempts(root, name)
        assert len(history) > 1, "it needed more than one attempt"
        assert list(history.values()) == ["timeout"] * (len(history) - 1) + ["completed"]
        assert steps(root, name) == list(range(1, 401)), "no step is missing, none is twice"
        (path,) = root.glob(f"{name}/*/ledger.jsonl")
        jobs = {event.job_id for event in RunFolder(path.parent).ledger if event.job_id}
        assert len(jobs) == (1 if name == "goes" else len(history)), (
            "one job, requeued, or one for each attempt"
        )
    slurm("collect", rc=0)
    query = "select sum(tokens)::bigint as tokens, count(distinct step) = count(*) as once from steps where study = 'goes'"
    totals = json.loads(slurm("sql", query, "--format", "json", rc=0).stdout)
    assert totals == [{"tokens": 400 * 64, "once": True}]


def test_a_cancelled_job_keeps_a_checkpoint_and_a_relaunch_goes_on_from_it(slurm, study, root, rows, hurry):
    path = study(LONGER)
    slurm("launch", path, "--profile", SANDBOX, rc=0)
    until(lambda: training(root))
    slurm("cancel", path, rc=0)
    until(lambda: rows()[0]["outcome"] == "cancelled")
    assert list(root.glob("tiny/*/attempt-1/checkpoint"))
    hurry()
    slurm("launch", path, "--profile", SANDBOX, "--wait", rc=0)
    manifest = json.loads(next(root.glob("tiny/*/attempt-2/manifest.json")).read_text())
    assert manifest["resumed_attempt"] == 1
    assert manifest["resumed_step"] > 0
    assert steps(root) == list(range(1, 401))


def test_a_controller_that_is_down_refuses_a_launch_and_loses_nothing(slurm, study, rows, cluster):
    path, daemons = study("matrix: {seed: [0]}\n"), Daemons(cluster)
    daemons.end("slurmctld")
    try:
        refused = slurm("launch", path, "--profile", SANDBOX, rc=3)
        assert "slurm" in refused.stderr.lower()
    finally:
        daemons.start("slurmctld")
    slurm("launch", path, "--profile", SANDBOX, "--wait", rc=0)
    assert [row["outcome"] for row in rows()] == ["completed"]


@pytest.fixture(autouse=True)
def _environment(cluster, monkeypatch):
    monkeypatch.setenv("SLURM_CONF", cluster["SLURM_CONF"])
    monkeypatch.setenv("PATH", cluster["PATH"])


def slurm_command(*command):
    subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE_SECONDS)
