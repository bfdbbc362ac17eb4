"""`explain` says of each attempt whether the run was started again after it, and why."""

import pytest

from model.record.folder import RunFolder
from runner.commands.explain import explain
from runner.state import ledger
from tests.analysis.fabricate import Folder, plan


def retries(folder):
    return [attempt["retry"] for attempt in explain(ledger.state(RunFolder(folder.path)))["attempts"]]


def slurm_attempt(folder, number, outcome, started_by="launch", **start):
    """An attempt on Slurm that has ended, started by a launch or by the job of the one before."""
    folder.event("claimed", attempt=number, executor="slurm")
    if started_by == "launch":
        folder.event("intent", attempt=number, submission="tiny-1", index=0, count=1)
    folder.event("submitted", attempt=number, executor="slurm", job_id=str(number))
    folder.start(number, **start)
    if outcome in ("timeout", "completed"):
        folder.end(outcome, attempt=number, steps=3)
    if outcome:
        folder.event("ended", attempt=number, outcome=outcome)


@pytest.fixture
def profile(tmp_path):
    (file := tmp_path / "own.yaml").write_text("executor: slurm\nretries: 1\nslurm: {partition: gpu}\n")
    return {"profile": "own", "profile_file": str(file)}


NO_PART = "the run had no part in how it ended"


def test_retries_are_counted_until_they_are_used_up(root, profile):
    folder = Folder(root, plan("r1", **profile))
    slurm_attempt(folder, 1, "node_failed")
    first = f"{NO_PART}; of the `retries: 1` in today's profile, this is number 1"
    assert retries(folder) == [f"`launch --wait` retries it: {first}"]
    slurm_attempt(folder, 2, "preempted")
    used_up = f"not retried: {NO_PART}, but the `retries: 1` in today's profile are used up"
    assert retries(folder) == [f"retried as attempt 2: {first}", used_up]
    slurm_attempt(folder, 3, None)
    assert retries(folder)[1:] == [f"{used_up}; attempt 3 was started by another command", None]


def test_a_job_that_goes_on_is_no_retry(root, profile):
    folder = Folder(root, plan("r1", chain=True, **profile))
    slurm_attempt(folder, 1, "timeout")
    farther = "its time was up, and it came from step 0 to step 3"
    assert retries(folder) == [f"`launch --wait` retries it: {farther}"]
    slurm_attempt(folder, 2, "timeout", started_by="job", resumed_attempt=1, resumed_step=3)
    no_farther = "not retried: its time was up, and it came no farther than step 3, where it began"
    assert retries(folder) == ["its job went on as attempt 2", no_farther]


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        ("completed", "it completed"), ("oom_gpu", "it ended as the study expects"), ("cancelled", "it was cancelled"),
        ("failed", "it would end the same way again"), ("timeout", "its time was up, and it may not go on in a next job"),
    ],
)  # fmt: skip
def test_what_is_not_retried_says_why(root, profile, outcome, reason):
    folder = Folder(root, plan("r1", expected_outcome="oom_gpu", **profile))
    slurm_attempt(folder, 1, outcome)
    assert retries(folder) == [f"not retried: {reason}"]


def test_nothing_is_retried_on_this_machine(root, profile):
    folder = Folder(root, plan("r1", **profile))
    folder.event("claimed", executor="local")
    folder.start()
    folder.event("ended", outcome="lost")
    assert retries(folder) == ["not retried: `launch --wait` retries runs on Slurm alone"]


def test_a_run_that_completed_on_this_machine_is_not_retried_because_it_completed(root, profile):
    folder = Folder(root, plan("r1", **profile))
    folder.event("claimed", executor="local")
    folder.start()
    folder.event("ended", outcome="completed")
    assert retries(folder) == ["not retried: it completed"]


def test_a_profile_that_is_gone_no_longer_says_how_often(root, profile):
    profile["profile_file"] += ".gone"
    folder = Folder(root, plan("r1", **profile))
    slurm_attempt(folder, 1, "failed")
    slurm_attempt(folder, 2, "lost")
    assert retries(folder) == [
        "not retried: it would end the same way again; attempt 2 was started by another command",
        "unknown: the profile own, which says how often, cannot be read today",
    ]


def test_a_job_whose_end_slurm_has_not_confirmed_may_start_again(root, profile):
    folder = Folder(root, plan("r1", chain=True, **profile))
    folder.event("submitted", executor="slurm", job_id="1")
    folder.start()
    folder.end("timeout", steps=3)
    assert retries(folder) == ["undecided: Slurm may still start its job again"]
