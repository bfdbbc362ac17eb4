"""Entry point of a Slurm job: selects this task's attempt and redirects output to the attempt's folder."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from model.record.errors import UserError
from model.record.files import no_link
from model.record.folder import Attempt, RunFolder
from model.record.outcome import Outcome
from model.training.parallel.place import Place
from runner.job.attempt import is_withdrawn, run_attempt
from runner.job.ranks.follower import Follower, stand_by
from runner.job.ranks.meeting import Meeting, NobodyCame, meeting_file, publish, wait_for_meeting
from runner.job.slurm import (
    continues_earlier_start,
    ending_before_restart,
    has_task_ended,
    job_id,
    predecessor,
)
from runner.state import gpus, guard, ledger
from runner.state.attempts import jobs_folder
from runner.state.code import snapshot
from runner.state.endings import Ending


def run_slot(run_folders: Sequence[str], attempts: Sequence[int]) -> str:
    """Run the attempt of this task's slot inside a Slurm job.

    A job gets folders and numbers alone, so editing code before it starts cannot change what was planned.
    """
    members = [(RunFolder(Path(path)), number) for path, number in zip(run_folders, attempts, strict=True)]
    try:
        for run, _ in members:  # since the launch, others may have put something else in its place
            guard.require_own(run.path.parent, run.path, run.path / "run.json")
    except UserError as error:
        # Slurm writes this wherever a link in its log's place leads: a shell must find no command in it.
        sys.exit(f"refused: {error}")
    first, number = members[0]
    processes = first.attempt(number).planned.config.processes
    slot, rank = slot_and_rank(len(members), processes)
    if slot >= len(members):
        return "unused task"  # so that no attempt starts twice
    if os.environ.get("ASSAY_SHARED_GPUS"):  # Slurm, not asked for GPUs, shows every task all of its node
        devices = gpus.visible(os.environ) or [str(number) for number in range(len(members) * processes)]
        os.environ[gpus.variable(os.environ)] = ",".join(devices[slot * processes : (slot + 1) * processes])
    run, number = members.pop(slot)
    if rank:
        return _follow(run, slot, rank)
    attempt: int | None = number
    if continues_earlier_start():
        attempt = attempt_of_restart(run, number)
    # A launcher that took this job for lost has started the run anew, or will.
    if attempt is None or run.attempt(attempt).event("ended") or _given_up(run.attempt(attempt)):
        if processes > 1:  # the others wait for this one
            publish(meeting_file(jobs_folder(run.path.parent), slot), Meeting(attempt=0))
        return "nothing left to do"
    for descriptor, log in ((1, "stdout.log"), (2, "stderr.log")):
        file = no_link(run.attempt(attempt).path / log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, descriptor)
        os.close(file)
    return run_attempt(run, attempt, [fellow for fellow, _ in members], slot)


def slot_and_rank(runs: int, processes: int) -> tuple[int, int]:
    """This task's slot, and its rank among the processes of that slot's run.

    Runs that share a job are on one node. A site's own rules can give a job more nodes or tasks than it asks
    for; their tasks get a slot that no run has.
    """
    node, local = (int(os.environ.get(name, "0")) for name in ("SLURM_NODEID", "SLURM_LOCALID"))
    if processes == 1:
        return (runs if node else local), 0
    return divmod(local if runs > 1 else int(os.environ.get("SLURM_PROCID", "0")), processes)


def _follow(run: RunFolder, slot: int, rank: int) -> str:
    """Act as a process of a run other than rank 0, following what rank 0 says.

    If rank 0 never appears, or its host is unknown here, the attempt ends with that reason.
    """
    path, local = meeting_file(jobs_folder(run.path.parent), slot), int(os.environ.get("SLURM_LOCALID", "0"))
    beside_rank_0 = os.environ.get("SLURM_NODEID", "0") == "0"  # on rank 0's node, where its task can be seen
    try:
        meeting = wait_for_meeting(
            path, is_over=partial(has_task_ended, local - rank) if beside_rank_0 else lambda: False
        )
        if not meeting.attempt:
            return "nothing left to do"
        planned = run.attempt(meeting.attempt).planned
        stand_by(Follower(run, Place(rank, planned.config.processes, local), meeting, snapshot.own_options()))
    except NobodyCame as error:  # Slurm would name this task, which fails because of rank 0
        # After any other OSError rank 0 or its node may be gone, and Slurm knows how it ended.
        absent = not isinstance(error.__cause__, OSError) or isinstance(error.__cause__, socket.gaierror)
        if absent and (newest := run.attempts()[-1]).settled is None:
            where = f"; it is on {newest.manifest.host}" if newest.manifest else ""
            ledger.record_end(run, newest.number, Ending(Outcome.FAILED, f"{error}{where}"))
        raise
    return f"rank {rank}"


def _given_up(attempt: Attempt) -> bool:
    """Whether a launcher gave up on this job's array before Slurm accepted it.

    Another array has claimed the attempt, or will.
    """
    name = os.environ.get("SLURM_JOB_NAME")
    meant = [event for event in attempt.noted if event.event == "intent" and event.submission == name]
    return bool(meant) and meant[-1] not in attempt.events


def attempt_of_restart(folder: RunFolder, number: int) -> int | None:
    """The attempt that a job works on which was restarted, or goes on for another one; None if there is none.

    If the run asked for this start, that is the attempt it claimed then. If Slurm requeued the job, after a
    node failure or a preemption, it is a new one, unless nothing of the last one had started and nobody has
    recorded its end. A run that was stopped before its end resumes.
    """
    newest, state, own = folder.attempts()[-1], ledger.state(folder), job_id()
    ours = newest.number == number or newest.job_id in {own, predecessor() or own}
    if state.outcome is Outcome.COMPLETED or not ours:
        return None  # done, or taken over by another job
    if newest.settled is None and ledger.is_untouched(folder, newest.number):
        return newest.number
    stopped = state.outcome is not None and state.outcome.may_come_back
    if not state.in_flight and (not stopped or is_withdrawn(newest)):
        return None
    if state.in_flight:
        ledger.record_end(folder, newest.number, ending_before_restart(folder, newest))
    again = newest.number + 1
    if not ledger.claim(folder, again, "slurm", newest.parallel):
        return None
    ledger.record_job(folder, again, own)
    return again
