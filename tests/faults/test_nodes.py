"""Slurm's daemons are killed and stopped under the runs: the outcomes are true, no run is lost, none runs twice."""

import json
import signal

import pytest

from model.record.folder import RunFolder
from tests.conftest import PACED, PATIENCE_SECONDS, REPOSITORY, until
from tests.faults.daemons import training
from tests.slurm.test_cluster import SANDBOX

pytestmark = pytest.mark.slurm
TWO = "matrix: {seed: [0, 1]}\n"
LONGER = ("--set", "train.steps=1000")  # until a test has it hurry, most of a minute
FOR_EVER = ("--set", "train.steps=1000000")
NO_DELAY = "runner.execute.reconcile:ACCOUNTING_DELAY=timedelta(0)"


@pytest.fixture
def patched(process, cluster, root):
    """The command line with another value of a constant."""

    def call(setting, *arguments, **env):
        words = [setting, "--", "--root", root, *arguments]
        return process("tests.faults.patched", *words, cwd=REPOSITORY, **{**cluster, **PACED, **env})

    return call


def first_training(root):
    """The process of a run that trains, the folder of its attempt, and its node."""
    process, attempt = until(lambda: next(iter(training(root)), None))
    until((attempt / "steps.jsonl").exists)
    return process, attempt, json.loads((attempt / "manifest.json").read_text())["slurm"]["SLURMD_NODENAME"]


def stands(rows):
    return sorted((row["outcome"] or row["phase"], row["attempt"]) for row in rows())


def completed_attempts(root):
    results = [json.loads(path.read_text()) for path in root.glob("*/*/attempt-*/result.json")]
    return sorted(result["run_id"] for result in results if result["outcome"] == "completed")


def all_completed(root, rows):
    """Wait for it, and make sure that each run completed once."""
    until(lambda: {row["outcome"] for row in rows()} == {"completed"})
    attempts = completed_attempts(root)
    assert len(attempts) == len(set(attempts)) == len(rows())


def test_a_slurmd_that_is_killed_harms_no_run_of_its_node(slurm, study, root, rows, daemons, hurry):
    slurm("launch", study(TWO), "--profile", SANDBOX, *LONGER, rc=0)
    process, _, node = first_training(root)
    daemons.end(f"slurmd.{node}", signal.SIGKILL)
    assert process.is_running()
    daemons.start(f"slurmd.{node}")
    hurry()
    all_completed(root, rows)
    assert {row["attempt"] for row in rows()} == {1}


def test_a_node_that_crashes_gives_its_job_to_another_and_harms_no_other_run(
    slurm, study, root, rows, daemons, hurry
):
    slurm("launch", study(TWO), "--profile", SANDBOX, *LONGER, rc=0)
    _, attempt, node = first_training(root)
    daemons.crash(node)
    hurry()
    all_completed(root, rows)
    assert stands(rows) == [("completed", 1), ("completed", 2)]
    manifest = json.loads((attempt.with_name("attempt-2") / "manifest.json").read_text())
    assert manifest["slurm"]["SLURMD_NODENAME"] != node
    explanation = json.loads(slurm("explain", attempt.parent.name, "--json", rc=0).stdout)
    assert [entry["outcome"] for entry in explanation["attempts"]] == ["node_failed", "completed"]


def test_a_node_that_crashes_before_the_first_step_of_its_run_gives_it_to_another(
    slurm, study, root, rows, daemons, hurry
):
    hurry()
    slurm(
        "launch", study("matrix: {seed: [0]}\n"), "--profile", SANDBOX, *LONGER, rc=0, RANK_FAULT="0:1:wait"
    )
    _, attempt = until(lambda: next(iter(training(root)), None))
    node = json.loads((attempt / "manifest.json").read_text())["slurm"]["SLURMD_NODENAME"]
    daemons.crash(node)
    assert not (attempt / "steps.jsonl").exists()
    until(lambda: rows()[0]["outcome"] == "completed")
    attempts = RunFolder(attempt.parent).attempts()
    assert [record.settled[0] for record in attempts] == ["node_failed", "completed"]
    assert attempts[1].manifest.slurm["SLURMD_NODENAME"] != node


def test_a_launch_while_a_job_is_on_its_way_back_into_the_queue_submits_nothing(
    slurm, study, root, rows, daemons, hurry
):
    """For some seconds accounting says NODE_FAIL, and the job itself that it was cancelled."""
    path = study("matrix: {seed: [0]}\n")
    slurm("launch", path, "--profile", SANDBOX, *LONGER, rc=0)
    process, _, node = first_training(root)
    daemons.down(node)
    for _ in range(4):
        assert "0 submitted" in slurm("launch", path, "--profile", SANDBOX, *LONGER, rc=0).stderr
    process.wait(PATIENCE_SECONDS)
    hurry()
    all_completed(root, rows)
    assert len(list(root.glob("tiny/*/attempt-*"))) == 2


def test_a_job_that_comes_back_when_another_has_its_run_leaves_it_alone(
    slurm, study, root, rows, daemons, hurry
):
    """An administrator puts a job back into the queue that had ended, and whose run was launched again."""
    path = study("matrix: {seed: [0]}\n")
    slurm("launch", path, "--profile", SANDBOX, *LONGER, rc=0)
    process, _, _ = first_training(root)
    job_id = rows()[0]["job_id"]
    process.kill()
    until(lambda: rows()[0]["outcome"] == "failed")
    slurm("launch", path, "--profile", SANDBOX, *LONGER, rc=0)
    daemons.ask("scontrol", "requeue", job_id)
    hurry()
    all_completed(root, rows)
    until(lambda: not daemons.ask("squeue", "-h"))
    assert len(list(root.glob("tiny/*/attempt-*"))) == 2
    assert len(completed_attempts(root)) == 1


def test_a_completed_run_whose_job_is_put_back_into_the_queue_is_not_trained_again(
    slurm, study, root, rows, daemons
):
    slurm("launch", study("matrix: {seed: [0]}\n"), "--profile", SANDBOX, "--wait", rc=0)
    until(lambda: not daemons.ask("squeue", "-h"))  # the run ends before its job does
    daemons.ask("scontrol", "requeue", rows()[0]["job_id"])
    until(lambda: not daemons.ask("squeue", "-h"))
    assert stands(rows) == [("completed", 1)]
    assert len(list(root.glob("tiny/*/attempt-*"))) == 1


def test_a_run_that_something_else_than_slurm_terminated_is_cancelled_and_goes_on_when_launched_again(
    slurm, study, root, rows, hurry
):
    """To Slurm its job has COMPLETED."""
    path = study("matrix: {seed: [0]}\n")
    slurm("launch", path, "--profile", SANDBOX, *LONGER, rc=0)
    first_training(root)[0].terminate()
    until(lambda: rows()[0]["phase"] == "ended")
    assert stands(rows) == [("cancelled", 1)]
    hurry()
    slurm("launch", path, "--profile", SANDBOX, *LONGER, "--wait", rc=0)
    assert stands(rows) == [("completed", 2)]
    assert json.loads(next(root.glob("tiny/*/attempt-2/manifest.json")).read_text())["resumed_attempt"] == 1


def test_runs_submitted_while_accounting_is_down_are_neither_lost_nor_submitted_again(
    slurm, study, root, rows, daemons, patched, hurry
):
    path = study(TWO)
    daemons.end("slurmdbd")
    slurm("launch", path, "--profile", SANDBOX, *LONGER, rc=0)
    status = slurm("status", "--json", rc=0)
    assert {row["phase"] for row in json.loads(status.stdout)} <= {"queued", "running"}
    assert "cannot tell how jobs ended until it answers again" in status.stderr
    daemons.start("slurmdbd")
    # Accounting answers, and does not know the jobs yet; ACCOUNTING_DELAY after the launch that is no reason.
    relaunch = patched(NO_DELAY, "launch", path, "--profile", SANDBOX, *LONGER)
    assert "0 submitted" in relaunch.stderr, relaunch.stderr
    hurry()
    all_completed(root, rows)
    assert {row["attempt"] for row in rows()} == {1}


def test_accountings_database_that_crashes_harms_no_run(slurm, study, root, rows, daemons, hurry):
    slurm("launch", study(TWO), "--profile", SANDBOX, *LONGER, rc=0)
    first_training(root)
    daemons.end("db", signal.SIGSEGV)
    hurry()
    all_completed(root, rows)
    assert {row["attempt"] for row in rows()} == {1}
    until(lambda: daemons.answers(["sacct", "-n"]))


def test_while_the_controller_is_down_status_answers_and_running_jobs_go_on(
    slurm, study, root, rows, daemons, hurry
):
    slurm("launch", study("matrix: {seed: [0]}\n"), "--profile", SANDBOX, *LONGER, rc=0)
    _, attempt, _ = first_training(root)
    daemons.end("slurmctld")
    assert rows()[0]["phase"] == "running"
    size = (attempt / "steps.jsonl").stat().st_size
    until(lambda: (attempt / "steps.jsonl").stat().st_size > size)
    daemons.start("slurmctld")
    hurry()
    all_completed(root, rows)
    assert stands(rows) == [("completed", 1)]


def test_while_neither_controller_nor_accounting_answers_what_is_known_is_shown_and_nothing_has_ended(
    slurm, study, root, rows, daemons
):
    path = study("matrix: {seed: [0]}\n")
    slurm("launch", path, "--profile", SANDBOX, *FOR_EVER, rc=0)
    first_training(root)
    daemons.end("slurmctld")
    daemons.end("slurmdbd")
    status = slurm("status", "--json", rc=0)
    assert [row["phase"] for row in json.loads(status.stdout)] == ["running"]
    assert "its runs are shown as last known" in status.stderr
    assert "Traceback" not in slurm("cancel", path, rc=3).stderr
    daemons.start("slurmdbd")
    daemons.start("slurmctld")
    assert rows()[0]["phase"] == "running"
    slurm("cancel", path, rc=0)
    until(lambda: rows()[0]["outcome"] == "cancelled")


def test_a_repeat_whose_job_slurm_puts_back_into_the_queue_is_waited_for_to_its_end(
    slurm, background, study, root, daemons, cluster, tmp_path, hurry
):
    """The job itself says that it was cancelled; that is not its end."""
    path = study("matrix: {seed: [0]}\n")
    slurm("launch", path, "--profile", SANDBOX, *LONGER, "--wait", rc=0, PACE_SECONDS="0")
    (run,) = [path.name for path in (root / "tiny").glob("[0-9a-f]*")]
    arguments = ["--root", root, "reproduce", run, "--profile", SANDBOX]
    repeat = background("runner", *arguments, cwd=tmp_path, **cluster, **PACED)
    process, attempt, _ = first_training(root)
    manifest = json.loads((attempt / "manifest.json").read_text())
    daemons.ask("scontrol", "requeue", manifest["slurm"]["SLURM_JOB_ID"])
    process.wait(PATIENCE_SECONDS)
    hurry()
    _, stderr = repeat.communicate(PATIENCE_SECONDS)
    assert repeat.returncode == 0, stderr
    assert "the outcome is the same, completed" in stderr
    assert len(list(attempt.parent.glob("attempt-*"))) == 2
