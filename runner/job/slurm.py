"""What a run asks of Slurm: when its time ends, why its job was started again, and to go on in a next job.

Much of this the batch script does, on the host (runner/execute/slurm/host.sh): a container may lack Slurm's
commands.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

from model.record.errors import UserError
from model.record.files import no_link
from model.record.folder import Attempt, RunFolder
from model.record.outcome import Outcome
from runner.state import culprit, ledger
from runner.state.attempts import jobs_folder
from runner.state.endings import Ending
from runner.state.slurm import SchedulerError, ask, ending_of_job

if TYPE_CHECKING:
    from runner.job.tasks import Progress

_FACT = re.compile(r"(\w+)=(\S+)")


def nodes_of_job() -> int:
    """How many nodes this process's job has."""
    return int(os.environ.get("SLURM_JOB_NUM_NODES", "1"))


def job_id() -> str:
    """This process's job, as ledgers have it: the last element of an array has the array's number."""
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else os.environ.get("SLURM_JOB_ID", "")


def job_end() -> float | None:
    """When Slurm will end this process's job, on the time.monotonic() clock; None if unknown, or never.

    If that time has passed, the job is not this process's: after `salloc`, a shell keeps an ended job's
    variables.
    """
    try:
        end = float(os.environ.get("SLURM_JOB_END_TIME", "") if "SLURM_JOB_ID" in os.environ else "")
    except ValueError:
        return None
    return None if end <= time.time() else time.monotonic() + end - time.time()


def continues_earlier_start() -> bool:
    """Whether this process's job was restarted, or goes on for another one."""
    return os.environ.get("SLURM_RESTART_COUNT", "0") != "0" or bool(predecessor())


def predecessor() -> str | None:
    """The job that this process's job goes on for, in whose place it was submitted."""
    return os.environ.get("ASSAY_AFTER") or None


def ending_before_restart(folder: RunFolder, attempt: Attempt) -> Ending:
    """How the attempt before this start of the job ended, from accounting and from its own result."""
    rows = [line.split("|") for line in os.environ.get("ASSAY_EARLIER", "").splitlines()]
    # Every ended entry is an earlier start: accounting may not list the current one yet.
    endings = [ending for row in rows if len(row) == 3 and (ending := ending_of_job(*row))]
    unknown = "Slurm has started the job again, and its accounting does not say why"
    ending, own = endings[-1] if endings else Ending(Outcome.LOST, unknown), attempt.result
    if own and ending.outcome is Outcome.LOST:
        return Ending(own.outcome, f"{own.reason} ({ending.reason})")
    return culprit.actual_ending(ending, folder, attempt.number)


def has_task_ended(local_id: int) -> bool:
    """Whether a task of this job step, on this node, has ended; False if Slurm does not say.

    The node's own daemon answers with the tasks that have not ended, including this one.
    """
    job, step = (os.environ.get(name) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    try:
        shown = ask("scontrol", "listpids", f"{job}.{step}", os.environ.get("SLURMD_NODENAME", ""))
    except SchedulerError:  # no Slurm commands inside the container
        return False
    running = {fields[3] for line in shown.splitlines()[1:] if len(fields := line.split()) > 3}
    return os.environ.get("SLURM_LOCALID") in running and str(local_id) not in running


def is_preempted() -> bool:
    """Whether Slurm has told this process's job to end within its GraceTime, for a job that comes first.

    Slurm takes a job that does so for completed, and neither requeues it nor calls it preempted.
    """
    if "SLURM_JOB_ID" not in os.environ:
        return False
    try:
        facts = dict(_FACT.findall(ask("scontrol", "-o", "show", "job", job_id())))
    except SchedulerError:  # no Slurm commands inside the container
        return False
    preempt_time, started = facts.get("PreemptTime", ""), facts.get("StartTime", "")
    return facts.get("JobState") == "RUNNING" and preempt_time[:1].isdigit() and preempt_time >= started


def should_go_on(ending: Ending, at_deadline: bool, progress: Progress, folder: RunFolder) -> bool:
    """Whether a stopped run goes back into the queue.

    Without a new step it would start over, again and again. It does so only if a node failed or another job
    came first, and not if the attempt before ended in the same way. With its node, Slurm ends a job that it
    may not start again.

    Args:
        at_deadline: whether it stopped because its time was about to end.
    """
    if ending.outcome is Outcome.NODE_FAILED and not os.environ.get("ASSAY_REQUEUE"):
        return False
    farther, number = progress.steps > (progress.manifest.resumed_step or 0), progress.manifest.attempt
    if not ending.outcome.is_taken:
        return at_deadline and farther
    if farther or number == 1:
        return True
    before = folder.attempt(number - 1)
    was_taken = before.settled is not None and before.settled[0].is_taken
    return not was_taken or (before.path / "steps.jsonl").exists()


def claim_next_job(folder: RunFolder, number: int) -> None:
    """Claim the attempt after this one for a next job, and ask for that job."""
    if not ledger.claim(folder, number + 1, "slurm", folder.attempt(number).parallel):
        return
    try:
        request_next_job(jobs_folder(folder.path.parent), folder, number + 1)
    except (OSError, UserError) as error:
        ledger.release(folder, number + 1, str(error))


def request_next_job(jobs: Path, folder: RunFolder, number: int) -> None:
    """Ask for a next job, in which a run goes on as an attempt that it has claimed.

    The batch script arranges it once all runs of the job have ended, or their time has. It is this job, which
    Slurm may also requeue by itself, until the script writes another to the ledger, or that there is none.

    Raises:
        OSError: the request cannot be written.
    """
    ledger.record_job(folder, number, job_id())
    none = "Slurm took no next job: the log of this one says why"
    lines = [
        ("submitted", ledger.new_event(number, "submitted", executor="slurm", job_id="@JOB@")),
        ("released", ledger.new_event(number, "released", reason=none)),
    ]
    path = jobs / f"{os.environ['SLURM_JOB_ID']}_next.{os.environ.get('SLURM_RESTART_COUNT', '0')}"
    text = [f"{event}\t{folder.path}/ledger.jsonl\t{line.model_dump_json()}\n" for event, line in lines]
    with open(path, "a", encoding="utf-8", opener=no_link) as file:
        file.write("".join(text))
