"""Slurm's answers are read as Slurm means them."""

import os
from datetime import UTC, datetime, timedelta

import pytest

from runner.commands.doctor import _scheduler
from runner.execute.slurm import client, site
from runner.execute.slurm.client import Job
from runner.state import slurm
from runner.state.slurm import NoAnswer, SchedulerError

NOON = "2026-11-21T12:00:00"
RECORDED = "AccountingStorageType = accounting_storage/slurmdbd"
UNRECORDED = "AccountingStorageType = accounting_storage/none"
BAR = slurm.BAR  # before the stand-ins replace it by what their answers have


def rows(fields, *lines, name="tiny-1"):
    """A command's lines, completed by times and names."""
    return "\n".join(f"{line}{'|' * (fields - 3 - line.count('|'))}|{NOON}|{name}" for line in lines)


def accounting(*lines, name="tiny-1"):
    return rows(6, *lines, name=name)


def queue(*lines, name="tiny-1"):
    return rows(5, *lines, name=name)


def jobs(*ids):
    """Our jobs of these numbers, submitted at noon."""
    noon = datetime.fromisoformat(NOON).astimezone(UTC)
    return [Job(job_id, "tiny-1", noon - timedelta(seconds=5), noon + timedelta(seconds=5)) for job_id in ids]


@pytest.fixture
def sacct(says):
    """Accounting's answer, beside a queue that is empty."""
    says("squeue", "")
    return lambda *lines: says("sacct", accounting(*lines))


def test_elements_that_never_started_are_shown_as_a_range(sacct, says):
    says("squeue", queue("7_3|RUNNING"))
    sacct("7_0|COMPLETED|0:0|n1", "7_[1-2,5%4]|CANCELLED by 0|0:0|None assigned", "7_3|RUNNING|0:0|n2")
    answer = client.poll(jobs("7_0", "7_1", "7_2", "7_3", "7_5", "7_9"))
    assert answer.alive == {"7_3"}
    endings = answer.endings
    assert {job: ending.outcome.value for job, ending in endings.items()} == {
        "7_0": "lost", "7_1": "cancelled", "7_2": "cancelled", "7_5": "cancelled",
    }  # fmt: skip


def test_a_range_may_have_steps_and_slurm_may_shorten_a_long_list(says):
    says("sacct", accounting("7_[0-6:2,9]|PENDING|0:0|", "8_[1,3,...|PENDING|0:0|"))
    says("squeue", queue(*(f"{job}|PENDING" for job in ("7_0", "7_2", "7_6", "7_9", "8_1", "8_3"))))
    answer = client.poll(jobs("7_0", "7_1", "7_2", "7_6", "7_9", "8_1", "8_3"))
    assert answer.alive == {"7_0", "7_2", "7_6", "7_9", "8_1", "8_3"}


@pytest.mark.fault
@pytest.mark.parametrize("element", ["7_[0-2]", "7"])
def test_the_end_of_an_arrays_last_element_is_not_that_of_the_others(sacct, element):
    """Seen on a busy cluster: the last element to start has the array's record, which tells nothing yet."""
    sacct(f"{element}|COMPLETED|0:0|n3", "7_0|FAILED|9:0|n1")
    endings = client.poll(jobs("7_0", "7_1", "7_2")).endings
    assert {job: ending.outcome.value for job, ending in endings.items()} == {"7_0": "failed"}


@pytest.mark.fault
def test_elements_that_are_cancelled_one_by_one_before_they_start_leave_only_their_array_behind(sacct):
    sacct("7_0|CANCELLED by 0|0:0|n1", "7|CANCELLED by 0|0:0|None assigned")
    answer = client.poll(jobs("7_0", "7_4", "7_5"))
    assert [str(ending.outcome) for ending in answer.endings.values()] == ["cancelled"] * 3


@pytest.mark.fault
def test_a_failed_job_whose_step_has_not_ended_in_accounting_is_not_told_as_failed_yet(says):
    """The step that ran out of memory may be recorded after its job, which then looks like any failure."""
    early = ("9|FAILED|1:0|n1", "9.batch|FAILED|1:0|n1", "9.0|RUNNING|0:0|n1")
    says("sacct", accounting(*early))
    says("squeue", queue("9|FAILED|n1"))
    answer = client.poll(jobs("9"))
    assert (answer.endings, answer.alive, answer.complete) == ({}, {"9"}, True)
    says("sacct", accounting(*early[:2], "9.0|OUT_OF_MEMORY|0:125|n1"))
    (ending,) = client.poll(jobs("9")).endings.values()
    assert ending.outcome == "oom_host"


@pytest.mark.fault
def test_a_step_that_never_ends_in_accounting_holds_its_job_until_the_controller_forgets_it(sacct):
    sacct("9|FAILED|1:0|n1", "9.0|RUNNING|0:0|n1")
    (ending,) = client.poll(jobs("9")).endings.values()
    assert ending.outcome == "failed"


def test_a_step_out_of_memory_is_why_its_job_failed(sacct):
    sacct("9|FAILED|1:0|n1", "9.batch|FAILED|1:0|n1", "9.0|OUT_OF_MEMORY|0:125|n1")
    assert client.poll(jobs("9")).endings["9"].outcome == "oom_host"


def test_a_step_that_somebody_cancelled_is_why_its_job_failed(sacct):
    """srun cancels one too, where a task of it fails."""
    sacct("9|FAILED|9:0|n1", "9.batch|FAILED|9:0|n1", "9.0|CANCELLED by 7|0:9|n1")
    (ending,) = client.poll(jobs("9")).endings.values()
    assert (ending.outcome, ending.reason) == ("cancelled", "Slurm: CANCELLED by 7, exit code 0:9 on n1")
    sacct("9|FAILED|9:0|n1", "9.batch|FAILED|9:0|n1", "9.0|CANCELLED|0:9|n1")
    assert client.poll(jobs("9")).endings["9"].outcome == "failed"


def test_why_jobs_wait_is_slurms_word(says, tmp_path):
    says("squeue", "12_3 PartitionNodeLimit\n12_4 None\n13 Priority")
    assert client.pending_reasons(["12_3", "12_4", "13"]) == {
        "12_3": "PartitionNodeLimit", "12_4": "", "13": "Priority",
    }  # fmt: skip
    assert f"-t PENDING --user {os.getuid()} -o %i %r" in (tmp_path / "asked").read_text()
    assert "-j" not in (tmp_path / "asked").read_text()
    assert client.pending_reasons(["99"]) == {}
    assert "-t PENDING -j 99 -o %i %r" in (tmp_path / "asked").read_text(), "it may be a colleague's"


def test_nothing_is_asked_of_no_job(says, tmp_path):
    says("squeue")
    assert client.pending_reasons([]) == {}
    assert not (tmp_path / "asked").exists()


def test_nothing_is_asked_about_no_jobs(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert client.poll([]).endings == {}


def test_more_jobs_than_fit_on_a_command_line_are_asked_about_in_several_calls(says, tmp_path, monkeypatch):
    monkeypatch.setattr(client, "CALL", 2)
    says("sacct", accounting(*(f"{number}|FAILED|1:0|n1" for number in range(1, 6))))
    says("scancel", "")
    says("squeue", queue(*(f"{number}|RUNNING" for number in range(1, 6))))
    assert client.poll(jobs(*"12345")).endings.keys() == set("12345")
    says("sacct", accounting(*(f"{number}|RUNNING|0:0|n1" for number in range(1, 6))))
    assert client.cancel(jobs(*"12345")).alive == set("12345")
    calls = (tmp_path / "asked").read_text().splitlines()
    assert [line for line in calls if "scancel" in line] == ["scancel 1 2", "scancel 3 4", "scancel 5"]
    assert [line.split(" -j ")[1].split()[0] for line in calls if "sacct" in line] == ["1,2", "3,4", "5"] * 2


@pytest.mark.fault
def test_while_accounting_is_down_the_controller_says_who_lives_and_nothing_has_ended(says):
    says("sacct", "slurmdbd: down", code=1)
    says("scontrol", RECORDED)
    says("squeue", queue("9|RUNNING", "12_3|PENDING", "10|FAILED"))
    answer = client.poll(jobs("9", "10"))
    assert (answer.alive, answer.endings, answer.complete) == ({"9"}, {}, False)


@pytest.mark.fault
def test_without_accounting_the_controller_says_how_jobs_ended_and_one_that_it_has_forgotten_is_unknown(says):
    records = (
        "JobId=12 ArrayJobId=10 ArrayTaskId=3 JobName=tiny-1 JobState=FAILED ExitCode=3:0 NodeList=n1\n"
        "JobId=10 ArrayJobId=10 ArrayTaskId=0-2%4 JobName=tiny-1 JobState=CANCELLED ExitCode=0:15"
    )
    says("sacct", "Slurm accounting storage is disabled", code=1)
    says("scontrol", f"{UNRECORDED}\n{records}")
    says("squeue", queue("9|RUNNING", "10_3|FAILED|n1", "10_1|CANCELLED", "11|TIMEOUT|n2"))
    answer = client.poll(jobs("8", "9", "10_1", "10_3", "11"))
    assert answer.alive == {"9"}
    assert answer.complete, "so that job 8 is lost, not still in flight"
    reasons = {job_id: (ending.outcome, ending.reason) for job_id, ending in answer.endings.items()}
    assert reasons["10_3"] == ("failed", "Slurm: FAILED, exit code 3:0 on n1")
    assert reasons["10_1"] == ("cancelled", "Slurm: CANCELLED, exit code 0:15")
    assert reasons["11"] == ("timeout", "Slurm: TIMEOUT on n2")


@pytest.mark.fault
def test_with_squeue_alone_it_still_says_how_jobs_ended(says):
    says("squeue", queue("9|RUNNING", "10|FAILED|n1"))
    answer = client.poll(jobs("8", "9", "10"))
    assert (answer.alive, answer.complete) == ({"9"}, True)
    assert answer.endings["10"].reason == "Slurm: FAILED on n1"


@pytest.mark.fault
def test_without_accounting_an_array_of_a_dead_launcher_is_found_in_the_queue(says):
    says("sacct", "Slurm accounting storage is disabled", code=1)
    says("scontrol", UNRECORDED)
    says("squeue", "0|7|tiny-1")
    assert client.find({"tiny-1", "tiny-2"}, datetime.now(UTC), 0) == {"tiny-1": "7"}
    says("scontrol", RECORDED)
    with pytest.raises(NoAnswer, match="sacct"):
        client.find({"tiny-1"}, datetime.now(UTC), 7)


# Prints a job as its last argument asks, as squeue does: a line break in its name ends the line.
PRINT = f"""
for format; do :; done
echo "$format" | /bin/sed -e 's/%[iF]/99/; s/%T/RUNNING/; s/%N/n1/; s/%V/{NOON}/' -e 's/%j/NAME/'
"""


@pytest.mark.fault
def test_the_name_of_a_strangers_job_makes_no_line_about_ours(says, monkeypatch):
    says("sacct", "Slurm accounting storage is disabled", code=1)
    says("scontrol", UNRECORDED)
    forged = [f"x\\n12{bar}FAILED{bar}n1{bar}{NOON}{bar}tiny-1" for bar in ("|", slurm.BAR)]
    says("squeue", also=PRINT.replace("NAME", forged[1]))
    assert client.poll(jobs("12")).endings.keys() == {"12"}, "a separator that it knows would be enough"
    monkeypatch.setattr(slurm, "BAR", BAR)
    says("squeue", also=PRINT.replace("NAME", forged[0]))
    assert client.poll(jobs("12")).endings == {}
    assert client.poll(jobs("99")).alive == {"99"}


@pytest.mark.fault
def test_a_strangers_job_of_the_same_name_is_not_taken_for_ours(says):
    """A launcher died before it recorded its array, and a neighbour read the name in squeue or in the ledger."""
    says("squeue", "8|99|tiny-1\n7|12|tiny-2\n8|98|tiny-2")
    says("sacct", "8|99|tiny-1")
    assert client.find({"tiny-1"}, datetime.now(UTC), 8) == {"tiny-1": "99"}
    assert client.find({"tiny-1", "tiny-2"}, datetime.now(UTC), 7) == {"tiny-2": "12"}


@pytest.mark.fault
@pytest.mark.parametrize("state", ["RUNNING", "PENDING", "REQUEUED"])
def test_a_job_that_goes_on_for_accounting_alone_is_a_runaway(says, state):
    """Accounting never heard of its end."""
    says("sacct", accounting(f"7|{state}|0:0|n1", "8|RUNNING|0:0|n1"))
    says("squeue", queue("8|RUNNING"))
    answer = client.poll(jobs("7", "8"))
    assert (answer.alive, answer.runaway, answer.endings, answer.complete) == ({"8"}, {"7"}, {}, True)


@pytest.mark.fault
def test_a_job_that_ends_between_the_two_questions_is_no_runaway(says, tmp_path):
    (late := tmp_path / "late").write_text(accounting("7|FAILED|3:0|n1") + "\n")
    says("sacct", accounting("7|RUNNING|0:0|n1"))
    says("squeue", also=f"/bin/cp {late} {tmp_path}/slurm/sacct.said")
    answer = client.poll(jobs("7"))
    assert (answer.alive, answer.runaway, answer.endings["7"].outcome) == (set(), set(), "failed")


@pytest.mark.fault
def test_while_the_controller_does_not_answer_nothing_is_a_runaway(says):
    says("sacct", accounting("7|RUNNING|0:0|n1"))
    says("squeue", "slurm_load_jobs error", code=1)
    answer = client.poll(jobs("7"))
    assert (answer.alive, answer.runaway, answer.complete) == ({"7"}, set(), False)


def test_all_users_jobs_are_never_listed(says, tmp_path):
    """This user's are asked for, and by their ids those that are not among them, as a colleague's."""
    says("sacct", "Slurm accounting storage is disabled", code=1)
    says("scontrol", UNRECORDED)
    says("squeue", queue("7_0|RUNNING", "7_1|PENDING"))
    assert client.poll(jobs("7_0", "7_1", "8_2", "9")).alive == {"7_0", "7_1"}
    mine, theirs = [line for line in (tmp_path / "asked").read_text().splitlines() if "squeue" in line]
    assert f"--user {os.getuid()}" in mine
    assert "-j 8,9 " in theirs


@pytest.mark.fault
def test_ids_that_the_controller_has_forgotten_are_an_answer(says):
    says("sacct", "Slurm accounting storage is disabled", code=1)
    says("scontrol", UNRECORDED)
    unknown = "case $* in *-j*) echo slurm_load_jobs error: Invalid job id specified >&2; exit 1;; esac"
    says("squeue", queue("7|RUNNING"), also=unknown)
    answer = client.poll(jobs("7", "9"))
    assert (answer.alive, answer.complete) == ({"7"}, True)


@pytest.mark.parametrize(
    ("output", "job"),
    [
        ("Submitted batch job 7", "7"),
        ("Submitted batch job 7 on cluster gpu", "7"),
        ("7;gpu", "7"),
        ("quota: your last job 42 used 10 % of its memory\nSubmitted batch job 7", "7"),
        ("Submitted batch job 42 was your last\nSubmitted batch job 7\nbalance after job 43: 9 hours", "7"),
    ],
)
def test_a_jobs_id_is_what_sbatch_says_and_not_what_a_wrapper_says(output, job):
    assert client.parse_job_id(output) == job


def test_text_without_sbatchs_answer_names_no_job():
    with pytest.raises(ValueError, match="names no job"):
        client.parse_job_id("quota: your last job 42 used 10 % of its memory")


@pytest.mark.fault
def test_a_job_that_slurm_has_put_back_into_its_queue_lives_whatever_accounting_still_says(says):
    says(
        "sacct",
        accounting("7|NODE_FAIL|0:0|n1", "8|NODE_FAIL|0:0|n1", "9|PREEMPTED|0:0|n1", "10|FAILED|1:0|n1"),
    )
    says("squeue", queue("7|PENDING", "8|NODE_FAIL", "9|COMPLETING"))
    answer = client.poll(jobs("7", "8", "9", "10"))
    assert answer.alive == {"7", "9"}
    assert answer.endings.keys() == {"8", "10"}


def test_a_job_of_which_accounting_has_not_heard_lives_while_the_controller_knows_it(says):
    says("sacct", accounting("7|COMPLETED|0:0|n1"))
    says("squeue", queue("8|PENDING", "9|FAILED"))
    answer = client.poll(jobs("7", "8", "9", "10"))
    assert answer.alive == {"8", "9"}
    assert answer.complete


@pytest.mark.fault
def test_while_the_controller_is_down_a_job_that_may_come_back_has_not_ended(says):
    says("sacct", accounting("7|NODE_FAIL|0:0|n1", "8|FAILED|1:0|n1"))
    says("squeue", "slurm_load_jobs error", code=1)
    answer = client.poll(jobs("7", "8"))
    assert (answer.alive, answer.endings.keys(), answer.complete) == (set(), {"8"}, False)


@pytest.mark.fault
def test_where_neither_answers_that_is_an_error(says):
    says("sacct", "slurm_load: down", code=1)
    says("squeue", "slurm_load: down", code=1)
    with pytest.raises(NoAnswer, match="squeue"):
        client.poll(jobs("9"))


@pytest.mark.fault
def test_a_strangers_job_of_the_same_number_is_neither_believed_nor_cancelled(says, tmp_path):
    """Slurm has started its numbers again: accounting and controller know 7 and 8 as someone else's."""
    fields = {"name": "odd|na\nme"}
    says("sacct", accounting("7|COMPLETED|0:0|n1", **fields).replace("2026-11", "2031-02"))
    says("squeue", queue("8|RUNNING", **fields).replace("2026-11", "2031-02"))
    says("scancel", "")
    answer = client.poll(jobs("7", "8"))
    assert (answer.endings, answer.alive, answer.taken, answer.complete) == ({}, set(), {"7", "8"}, True)
    assert client.cancel(jobs("7", "8")).alive == set()
    assert "scancel" not in (tmp_path / "asked").read_text()


@pytest.mark.fault
def test_a_number_that_was_someone_elses_before_is_ours_once_the_controller_says_so(says):
    says("sacct", accounting("7|COMPLETED|0:0|n1", name="theirs").replace("2026", "2021"))
    says("squeue", queue("7|RUNNING"))
    answer = client.poll(jobs("7"))
    assert (answer.alive, answer.endings, answer.taken) == ({"7"}, {}, set())


def test_a_job_that_was_renamed_or_requeued_is_still_ours(says):
    says("sacct", accounting("7|FAILED|1:0|n1", name="renamed"))
    assert client.poll(jobs("7")).endings["7"].outcome == "failed"
    says("sacct", accounting("7|FAILED|1:0|n1").replace("T12:", "T19:"))
    assert client.poll(jobs("7")).endings["7"].outcome == "failed"


@pytest.mark.fault
def test_nothing_is_called_cancelled_while_the_controller_does_not_answer(says):
    says("sacct", "")
    says("squeue", "slurm_load_jobs error", code=1)
    with pytest.raises(NoAnswer, match="squeue"):
        client.cancel(jobs("7"))


def test_a_command_that_fails_is_quoted(says):
    says("sacct", "slurm_load: down", code=1)
    with pytest.raises(SchedulerError, match="sacct: exit code 1"):
        slurm.ask("sacct")


@pytest.mark.fault
def test_slurms_commands_without_a_cluster_are_one_sentence(says):
    unknown = "echo scontrol: error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host >&2"
    says(
        "scontrol",
        code=1,
        also=f"{unknown}\necho scontrol: fatal: Could not establish a configuration source >&2",
    )
    with pytest.raises(NoAnswer) as error:
        site.max_array_size()
    assert str(error.value) == (
        "scontrol: no Slurm cluster is configured on this machine; "
        "run this on the cluster's login node, set SLURM_CONF, or use --profile local"
    )


def test_doctor_says_whether_a_cluster_answers_and_whether_it_records_how_jobs_end(says):
    says("sacct")
    says("scontrol", f"MaxArraySize = 1001\n{RECORDED}")
    (*_, check) = _scheduler(True)
    assert check.found == "answers; job arrays of up to 1,001; accounting"
    says("scontrol", f"MaxArraySize = 0\n{UNRECORDED}")
    (*_, check) = _scheduler(True)
    assert "arrays of up to 1; no accounting: keep `launch --wait` running" in check.found
    says("scontrol", code=1, also="echo Unable to contact slurm controller >&2")
    (*_, check) = _scheduler(True)
    assert (check.mark, check.found) == ("FAILS", "scontrol: Unable to contact slurm controller")


def test_an_array_has_at_most_what_the_scheduler_takes(says):
    says("scontrol", "MaxArraySize = 1001\nSchedulerParameters = bf_interval=60,max_array_tasks=100,defer")
    assert site.max_array_size() == 100


@pytest.mark.parametrize(("setting", "size"), [("0", 1), ("1", 1), ("1001", 1001)])
def test_without_arrays_each_job_is_submitted_alone(says, setting, size):
    says("scontrol", f"MaxArraySize            = {setting}")
    assert site.max_array_size() == size


def sbatch(tmp_path, monkeypatch, body):
    path = tmp_path / "bin" / "sbatch"
    path.parent.mkdir()
    path.write_text(f"#!/bin/sh\ncat >{tmp_path}/script\n{body}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")


def test_slurm_is_asked_when_the_first_job_would_start(tmp_path, monkeypatch):
    sentence = (
        "sbatch: Job 13 to start at 2026-11-21T02:23:04 using 1 processors on nodes n1 in partition debug"
    )
    sbatch(tmp_path, monkeypatch, f'[ "$1" = --test-only ] && echo "{sentence}" >&2')
    assert site.expected_start("#!/bin/bash\ntrue\n") == "2026-11-21T02:23:04"
    assert (tmp_path / "script").read_text() == "#!/bin/bash\ntrue\n"


def test_slurm_that_does_not_say_is_no_answer(tmp_path, monkeypatch):
    sbatch(tmp_path, monkeypatch, "true")
    assert site.expected_start("#!/bin/bash\n") is None


def test_a_refusal_has_slurms_own_words(tmp_path, monkeypatch):
    sbatch(tmp_path, monkeypatch, 'echo "allocation failure: Invalid partition name specified" >&2; exit 1')
    with pytest.raises(SchedulerError, match="Invalid partition name"):
        site.expected_start("#!/bin/bash\n")


@pytest.mark.fault
def test_an_sbatch_that_hangs_is_given_up(tmp_path, monkeypatch):
    sbatch(tmp_path, monkeypatch, "exec sleep 60")
    monkeypatch.setattr("runner.state.slurm.TIMEOUT_SECONDS", 0.3)
    with pytest.raises(SchedulerError, match="did not answer"):
        site.expected_start("#!/bin/bash\n")


def test_nodes_that_went_down_are_those_that_accounting_has_seen_since(says, tmp_path):
    """Also if they are up again. A node that is drained goes on with its jobs."""
    since = datetime(2026, 3, 1, 12).astimezone()
    says(
        "sacctmgr",
        "n1|DOWN*|2026-03-01T12:00:07\nn2|DRAIN|2026-03-01T12:00:08\nn3|DOWN|2026-03-01T11:00:00\n|Unknown|",
    )
    assert slurm.failed_nodes("n[1-3]", since) == ["n1"]
    calls = (tmp_path / "asked").read_text()
    assert "show event nodes=n[1-3] start=2026-03-01T12:00:00" in calls
    assert "sinfo" not in calls


@pytest.mark.fault
def test_where_accounting_does_not_tell_the_nodes_that_are_down_now_have_failed(says):
    since = datetime(2026, 3, 1, 12).astimezone()
    says("sacctmgr", "Slurm accounting storage is disabled", code=1)
    says("sinfo", "n1|idle|2026-03-01T12:00:00\nn2|down*|2026-03-01T12:00:00")
    assert slurm.failed_nodes("n[1-2]", since) == ["n2"]
    says("sinfo", "", code=1)
    assert slurm.failed_nodes("n[1-2]", since) == []


def test_a_users_running_jobs_are_asked_for_in_one_command(says, tmp_path):
    """Ids are not named: Slurm answers with an error if it has forgotten one."""
    says("squeue", "7\n8_1\n8_2")
    assert client.running() == {"7", "8_1", "8_2"}
    (call,) = (tmp_path / "asked").read_text().splitlines()
    assert f"--user {os.getuid()} -t RUNNING,SUSPENDED,STOPPED" in call
    assert "-j" not in call.split()
