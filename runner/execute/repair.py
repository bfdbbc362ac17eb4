"""Repairs what a dead launcher left behind: claims without a job, and jobs whose ids were not recorded.

Only the holder of the study's lock repairs; otherwise, what looks orphaned could be a launch in progress.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil

from model.record.files import Unreadable
from model.record.folder import Attempt, RunFolder
from model.record.outcome import Outcome
from model.record.records import now
from runner.execute.slurm import client
from runner.execute.slurm.ours import intent_of
from runner.state import ledger, process
from runner.state.endings import Ending
from runner.state.ledger import RunState
from runner.state.lock import study_lock
from runner.state.runs import recordable

# Nobody knows whether a process on another machine is alive. So a claim from there is left alone for this
# long, and a run that has started there for this long after it last wrote anything.
FOREIGN_CLAIM = timedelta(minutes=5)
FOREIGN_RUN = timedelta(hours=3)
# An sbatch that did not answer may have asked a busy controller, which accepts the array later.
UNANSWERED = timedelta(minutes=2)
LOST = Ending(Outcome.LOST, "the launcher and the run's process died without a result")


def repair(states: Iterable[RunState]) -> bool:
    """Repair the orphans among these runs; returns whether anything was written.

    Raises:
        SchedulerError: an array may have been submitted, and Slurm cannot be reached.
    """
    studies = defaultdict(list)
    for state in recordable(filter(orphaned, states)):
        studies[state.folder.path.parent].append(state.folder)
    repaired = [_repair_study(study, folders) for study, folders in studies.items()]
    return any(repaired)


def orphaned(state: RunState) -> bool:
    """Whether an attempt was claimed but has no job and no process, and its launcher is dead."""
    if not state.in_flight or state.job_id:
        return False
    claim = state.event("claimed")
    mine = claim and all(getattr(claim, name) == value for name, value in process.me().items())
    if mine and (intent := state.event("intent")):
        # This launcher waits for runs whose sbatch did not answer.
        return now() - intent.time > UNANSWERED and not _process_lives(state)
    lives = process.alive(claim) if claim else None
    if lives is None:  # or its claim was torn when the machine crashed
        assert state.latest
        return now() - last_sign(state.latest) > (FOREIGN_RUN if state.latest.started else FOREIGN_CLAIM)
    return not lives and not _process_lives(state)


def last_sign(attempt: Attempt) -> datetime:
    """When an attempt last made a file, or wrote to one of its logs."""
    paths = [attempt.path, *attempt.path.glob("*.log"), *attempt.path.glob("*.jsonl")]
    return datetime.fromtimestamp(max(path.stat().st_mtime for path in paths), UTC)


def _process_lives(state: RunState) -> bool:
    try:
        manifest = state.latest.manifest if state.latest else None
    except Unreadable:
        return False
    return bool(manifest and process.alive(manifest))


def _repair_study(study: Path, folders: list[RunFolder]) -> bool:
    with study_lock(study, wait_seconds=0) as held:
        if not held:
            return False  # another launch is running, and repairs before it submits
        # Read again: what looked orphaned before the lock may have been another launcher's work in progress.
        orphans = [state for state in map(ledger.state, folders) if orphaned(state)]
        # In this order: Slurm knows what an sbatch has submitted that has ended by now.
        busy = _sbatch_runs({intent.submission for state in orphans if (intent := intent_of(state))})
        jobs = by_name(orphans, study.stat().st_uid)
        for state in orphans:
            if job_id := jobs.get(state.folder.path):
                ledger.submitted(state.folder, state.attempt, job_id)
            else:
                _repair_run(state, busy)
        return bool(orphans)


def by_name(states: Iterable[RunState], owner: int) -> dict[Path, str]:
    """Ids, by run, of the jobs that attempts were meant for, found in Slurm by the names of their arrays.

    Args:
        owner: id of the user who submitted them.

    Raises:
        NoAnswer: Slurm cannot be reached.
    """
    meant = {
        state.folder.path: intent for state in states if (intent := intent_of(state)) and intent.submission
    }
    if not meant:
        return {}
    names = {str(intent.submission) for intent in meant.values()}
    arrays = client.find(names, min(intent.time for intent in meant.values()), owner)
    return {
        path: array if intent.count == 1 else f"{array}_{intent.index}"
        for path, intent in meant.items()
        if (array := arrays.get(str(intent.submission)))
    }


def _repair_run(state: RunState, busy: bool) -> None:
    """Release or end an orphan that Slurm does not know.

    Args:
        busy: whether an sbatch outlived its launcher and may still submit.
    """
    intent = state.event("intent")
    if intent and busy:
        return
    if ledger.untouched(state.folder, state.attempt):
        ledger.release(state.folder, state.attempt, "the launcher died before starting it")
    elif intent and now() - last_sign(state.folder.attempt(state.attempt)) < UNANSWERED:
        return  # its job started after Slurm was asked
    else:
        ledger.ended(state.folder, state.attempt, LOST)


def _sbatch_runs(names: Collection[str | None]) -> bool:
    """Whether an sbatch of one of these arrays is still running on this machine."""
    meant = {f"--job-name={name}" for name in names}
    commands = (process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"]))
    return any(
        command and Path(command[0]).name == "sbatch" and not meant.isdisjoint(command)
        for command in commands
    )
