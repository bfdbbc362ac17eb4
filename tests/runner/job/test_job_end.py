"""When Slurm ends a job, as a run in it asks."""

import subprocess
import time
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from model.record.folder import RunFolder
from runner.execute.slurm import script
from runner.job import slurm
from runner.job.slurm import is_preempted, job_end
from runner.state import ledger
from tests.analysis.fabricate import Folder, plan


@pytest.fixture
def host(tmp_path):
    """Runs the batch script's part on the host, with stand-ins for Slurm's commands, in job 12."""

    def run(command, after=(), environment=None, **commands):
        for name, body in commands.items():
            (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
            (tmp_path / name).chmod(0o755)
        text = Path(script.__file__).with_name("host.sh").read_text()
        (tmp_path / "script").write_text(
            f"assay_jobs={tmp_path} assay_requeue=yes assay_name=x assay_limit=\n{text}\n{command}\n"
        )
        variables = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "12", "SLURM_JOB_NAME": "x"}
        return subprocess.run(
            ["bash", tmp_path / "script", *after], env=variables | (environment or {}), capture_output=True,
            text=True, check=True,
        ).stdout  # fmt: skip

    return run


def test_the_last_element_of_an_array_does_not_take_the_end_of_another_for_its_own(host):
    """It has the array's number, for which squeue shows all elements; one of them is just ending."""
    now = datetime.now().replace(microsecond=0)  # Slurm prints local time
    lines = f"13 {now - timedelta(seconds=1):%FT%T}", f"12 {now + timedelta(seconds=6):%FT%T}"
    answer = host('echo "$SLURM_JOB_END_TIME"', squeue=f"printf '%s\\n' '{lines[0]}' '{lines[1]}'")
    assert int(answer) == int((now + timedelta(seconds=6)).timestamp())


@pytest.mark.parametrize("line", ["", "12 N/A", "12 NONE", "13 2026-01-01T00:00:00", "nonsense"])
def test_an_end_that_slurm_does_not_tell_is_unknown(host, line):
    assert host('echo "<$SLURM_JOB_END_TIME>"', squeue=f"echo '{line}'") == "<>\n"


@pytest.mark.parametrize("value", ["100", "banana", "-1", ""])
def test_an_end_that_is_over_or_no_time_is_no_limit(monkeypatch, value):
    """Of a shell that has outlived its job."""
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    monkeypatch.setenv("SLURM_JOB_END_TIME", value)
    assert job_end() is None


@pytest.fixture
def goes_on(root, tmp_path, monkeypatch):
    """A run of job 12 that has asked to go on as attempt 2; its ledger's last line."""
    folder = RunFolder(Folder(root, plan("r1", chain=True)).path)
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    assert ledger.claim(folder, 2, "slurm")
    slurm.request_next_job(tmp_path, folder, 2)

    def last():
        event = RunFolder(folder.path).ledger[-1]
        return event.event, event.attempt, event.job_id, event.reason

    last.run = folder
    return last


def test_a_job_goes_on_by_requeue(host, goes_on, tmp_path):
    host("assay_go_on", squeue="true", scontrol=f'echo "$*" >>{tmp_path}/asked', sbatch="exit 1")
    assert (tmp_path / "asked").read_text() == "requeue 12\n"
    assert goes_on() == ("submitted", 2, "12", None)


@pytest.mark.parametrize("refuses", ["exit 1", None], ids=["requeue is refused", "requeue: false"])
def test_a_job_that_cannot_be_requeued_goes_on_in_a_new_one_that_waits_for_it(
    host, goes_on, tmp_path, refuses
):
    """It is told which job it goes on for, and takes none of that job's options."""
    commands = {"scontrol": refuses} if refuses else {}
    command = f'echo "$*" >>{tmp_path}/asked; env | grep ^SLURM_ >>{tmp_path}/asked; echo "45;big"'
    host(
        "assay_go_on; assay_go_on" if refuses else "assay_requeue=; assay_go_on", squeue="echo RUNNING", sbatch=command,
        environment={"SLURM_NTASKS": "8", "SLURM_CONF": "/c"}, **commands,
    )  # fmt: skip
    assert (tmp_path / "asked").read_text().splitlines() == [
        f"--parsable --job-name=x --dependency=afterany:12 {tmp_path}/script 12", "SLURM_CONF=/c",
    ]  # fmt: skip
    assert goes_on() == ("submitted", 2, "45", None)


def test_an_element_of_an_array_goes_on_as_the_same_element(host, goes_on, tmp_path):
    array = {"SLURM_ARRAY_JOB_ID": "10", "SLURM_ARRAY_TASK_ID": "3"}
    command = f'echo "$*" >>{tmp_path}/asked; echo 45'
    host("assay_requeue=; assay_go_on", squeue="true", sbatch=command, environment=array)
    assert "--dependency=afterany:10_3 --array=3 " in (tmp_path / "asked").read_text()
    assert goes_on() == ("submitted", 2, "45_3", None)


def test_new_jobs_of_an_array_keep_to_how_many_of_it_may_run_at_once(host, goes_on, tmp_path):
    """They start after the array, and those of one name one after another: element 3 of 2 at once is of the second."""
    array = {"SLURM_ARRAY_JOB_ID": "10", "SLURM_ARRAY_TASK_ID": "3"}
    command = f'echo "$*" >>{tmp_path}/asked; echo 45'
    host("assay_requeue= assay_limit=2; assay_go_on", squeue="true", sbatch=command, environment=array)
    calls = (tmp_path / "asked").read_text()
    assert "--job-name=x.1 --dependency=afterany:10_3,afterany:10,singleton --array=3 " in calls


@pytest.mark.fault
@pytest.mark.parametrize(
    ("answer", "queue"),
    [
        ("echo 'your last job 42 ended'; echo 45", "true"),
        (
            "echo sbatch: error: Socket timed out >&2; exit 1",
            "echo '45 afterany:12(unfulfilled)'; echo '46 afterany:123('",
        ),
    ],
    ids=["a wrapper that talks", "no answer"],
)
def test_the_new_job_is_known_whatever_else_is_printed_and_if_its_sbatch_has_no_answer(
    host, goes_on, answer, queue
):
    host("assay_requeue=; assay_go_on", squeue=queue, sbatch=answer)
    assert goes_on() == ("submitted", 2, "45", None)


@pytest.mark.fault
def test_a_controller_that_is_busy_and_a_queue_that_is_full_are_asked_again_while_there_is_time(
    host, goes_on, tmp_path
):
    count = f"echo >>{tmp_path}/asked; [ $(wc -l <{tmp_path}/asked) = 3 ] && echo 45"
    end = {"SLURM_JOB_END_TIME": str(int(time.time()) + 3600)}
    host("assay_go_on", sleep="exit 1", squeue="exit 1", scontrol="exit 1", sbatch=count, environment=end)
    assert goes_on() == ("submitted", 2, "45", None)


@pytest.mark.fault
def test_a_job_that_cannot_go_on_at_all_gives_the_next_attempt_back(host, goes_on):
    host(
        "assay_go_on",
        squeue="echo RUNNING",
        scontrol="exit 1",
        sbatch="echo sbatch: error: 12 no >&2; exit 1",
    )
    event, attempt, _, reason = goes_on()
    assert (event, attempt) == ("released", 2)
    assert "Slurm took no next job" in reason
    assert not RunFolder(goes_on.run.path).attempts(), "a folder that is left would stand for a claim"


@pytest.mark.fault
def test_a_job_that_slurm_has_put_back_by_itself_is_not_submitted_a_second_time(host, goes_on, tmp_path):
    host("assay_go_on", squeue="echo COMPLETING", scontrol="exit 1", sbatch=f"touch {tmp_path}/asked")
    assert not (tmp_path / "asked").exists()
    assert goes_on() == ("submitted", 2, "12", None)


def test_a_job_whose_runs_have_not_asked_to_go_on_is_neither_requeued_nor_submitted(host, tmp_path):
    command = f"touch {tmp_path}/asked"
    host("assay_go_on", squeue="true", scontrol=command, sbatch=command)
    assert not (tmp_path / "asked").exists()


@pytest.mark.parametrize(
    ("restart", "after", "job"), [("0", [], None), ("0", ["11"], "11"), ("1", ["11"], "12"), ("2", [], "12")]
)
def test_how_the_start_before_ended_is_asked_on_the_host(host, restart, after, job):
    answer = host(
        'echo "$ASSAY_AFTER/$ASSAY_EARLIER"', after, {"SLURM_RESTART_COUNT": restart},
        squeue="true", sacct='[[ $* == *" -j "* ]] && echo "TIMEOUT|0:0|n1 $*"',
    )  # fmt: skip
    assert answer.startswith(f"{''.join(after)}/")
    assert (f"-j {job} " in answer) if job else answer == "/\n"


@pytest.mark.parametrize(
    ("state", "started", "notice", "preempted"),
    [
        ("RUNNING", "2026-03-01T12:00:00", "2026-03-01T12:30:00", True),
        ("RUNNING", "2026-03-01T12:00:00", "None", False),
        ("RUNNING", "2026-03-01T12:00:00", "2026-03-01T11:00:00", False),
        ("PENDING", "2026-03-01T12:00:00", "2026-03-01T12:30:00", False),
    ],
    ids=["told to end", "never", "before it was requeued", "requeued by Slurm"],
)
def test_a_job_is_preempted_if_slurm_has_told_it_to_end_since_it_started(
    tmp_path, monkeypatch, state, started, notice, preempted
):
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    monkeypatch.setenv("PATH", str(tmp_path))
    record = f"JobId=12 JobName=x JobState={state} StartTime={started} PreemptTime={notice} Comment=a b"
    (tmp_path / "scontrol").write_text(f"#!/bin/sh\necho '{record}'\n")
    (tmp_path / "scontrol").chmod(0o755)
    assert is_preempted() == preempted


def test_a_job_that_cannot_ask_slurm_is_not_known_to_be_preempted(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    assert not is_preempted()
    monkeypatch.delenv("SLURM_JOB_ID")
    assert not is_preempted()
