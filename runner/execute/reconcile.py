"""Determines the status of runs: asks the scheduler, and repairs what dead launchers left behind.

They leave claims without a job, and jobs whose ids were not recorded. Only the holder of the study's lock
repairs; otherwise, what looks orphaned could be a launch in progress.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from model.record.errors import UserError
from model.record.files import Unreadable
from model.record.folder import Attempt, RunFolder, run_folders
from model.record.outcome import Outcome
from model.record.records import now
from runner.execute.slurm import client
from runner.state import culprit, ledger, process
from runner.state.endings import Ending
from runner.state.filesystem import study_lock
from runner.state.ledger import RunState
from runner.state.runs import in_flight, recordable, states, states_of, warn_once
from runner.state.slurm import NoAnswer

if TYPE_CHECKING:
    from analysis.store.collect import CollectSummary
    from analysis.store.scan import Key

ACCOUNTING_DELAY = timedelta(minutes=2)  # after sbatch, until accounting must know the job
# Nobody knows whether a process on another machine is alive. So a claim from there is left alone for this
# long, and a run that has started there for this long after it last wrote anything.
FOREIGN_CLAIM = timedelta(minutes=5)
FOREIGN_RUN = timedelta(hours=3)
# An sbatch that did not answer may have asked a busy controller, which accepts the array later.
UNANSWERED = timedelta(minutes=2)
LOST = Ending(Outcome.LOST, "the launcher and the run's process died without a result")
# Seconds between questions to Slurm. Centres ask for a minute; at first and after a change, more is to come.
SHORTEST, LONGEST = 2.0, 60.0
GROWTH = 1.5


def reconciled(root: Path, study: str | None = None) -> list[RunState]:
    """Return all runs, after repairing orphans and recording in the ledgers which attempts ended silently.

    While Slurm cannot be reached, or nothing can be written, a warning says so, and runs are as their files
    show them.
    """
    return reconciled_runs(list(run_folders(root, study)))


def reconciled_runs(folders: Sequence[RunFolder]) -> list[RunState]:
    """Return the runs in these folders, as `reconciled` does."""
    runs = states_of(folders)
    try:
        if repair(runs):
            runs = states_of(folders)
        return states_of(folders) if _settle(runs) else runs
    except NoAnswer as error:
        warn_once(f"{error}; until Slurm answers, its runs are shown as last known")
    except UserError as error:  # the disk may be full, which `gc` can mend
        warn_once(f"{error}; until that can be done, runs are shown as last known")
    return states_of(folders)


def collected(root: Path, study: str | None = None, rebuild: bool = False) -> CollectSummary:
    """Bring the database up to date, as `collect` does, also with the ends that only Slurm knows.

    The files of runs that the database knows to be over are not read, which takes long over 10,000 runs.
    """
    from analysis.store.collect import collect  # slow to import, and `runner status` does not need it

    def settle(runs: list[Key]) -> None:
        # The root as it was given: job folders are named with it, which tells whose an sbatch is.
        reconciled_runs([RunFolder(f"{root}/{name}/{run}") for name, run in runs])

    return collect(root, study, rebuild, settle)


def waits_for(states: Sequence[RunState]) -> dict[str, str]:
    """Reasons in Slurm's words why queued runs have not started, by job id; empty while it gives none."""
    queued = {state.job_id for state in states if state.phase == "queued" and state.job_id}
    try:
        return {job_id: why for job_id, why in client.pending_reasons(queued).items() if why}
    except NoAnswer:
        return {}


class Patience:
    """When to ask next: soon after something has changed, and less and less often while nothing does.

    Args:
        clock: seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._due, self._pause = clock(), SHORTEST
        self._seen: object = None

    def due(self, seen: object) -> bool:
        """Whether to ask now.

        Args:
            seen: what can be seen without asking; if it differs from the last time, something has changed.
        """
        moment = self._clock()
        if seen != self._seen:
            self._seen, self._pause = seen, SHORTEST
            self._due = min(self._due, moment + SHORTEST)
        if moment < self._due:
            return False
        self._due, self._pause = moment + self._pause, min(GROWTH * self._pause, LONGEST)
        return True


class RunWatch:
    """The runs under a root, or of one study, while they go on: Slurm is asked after pauses that grow.

    Attributes:
        asked: whether the latest look asked Slurm, and repaired what dead launchers left.
    """

    def __init__(self, root: Path, study: str | None) -> None:
        self.root, self.study, self.asked = root, study, False
        self._patience = Patience()

    def look(self) -> list[RunState]:
        """The runs as they are now. What only Slurm knows is as of when it was asked last."""
        shown = states(self.root, self.study)
        flying = in_flight(shown)
        on_slurm = any(state.latest and state.latest.executor == "slurm" for state in flying)
        seen = {
            (str(state.folder.path), state.attempt, state.phase, state.outcome, state.job_id)
            for state in shown
        }
        self.asked = self._patience.due(seen) or not on_slurm
        return reconciled(self.root, self.study) if self.asked else shown


def _settle(runs: list[RunState]) -> bool:
    """Record in ledgers how jobs ended; returns whether runs are not as they were. Raises NoAnswer."""
    asked = list(recordable(state for state in runs if must_ask_slurm(state) and state.job_id))
    answer = client.poll(map(client.job_of, asked))
    if answer.problem:
        warn_once(f"{answer.problem}: cannot tell how jobs ended until it answers again")
    for state in asked:
        ending = answer.endings.get(state.job_id or "")
        if ending and _is_current(state):
            ledger.record_end(
                state.folder, state.attempt, culprit.actual_ending(ending, state.folder, state.attempt)
            )
    unknown = [state for state in asked if _is_unknown(state, answer)]
    # Jobs by the names of their arrays: a number that Slurm does not know may have been noted wrongly.
    owners = defaultdict(list)
    for state in unknown:
        owners[_owner(state)].append(state)
    jobs_of_owners = [jobs_by_name(theirs, owner) for owner, theirs in owners.items()]
    job_ids = {path: job_id for jobs in jobs_of_owners for path, job_id in jobs.items()}
    for state in filter(_is_current, unknown):
        if (job_id := job_ids.get(state.folder.path)) and job_id != state.job_id:
            ledger.record_job(state.folder, state.attempt, job_id)
        else:
            # Read again: it may have ended after its state was read, and before Slurm was asked.
            result = state.folder.attempt(state.attempt).result
            reused = " (another job has that number now)" if state.job_id in answer.taken else ""
            why = f"Slurm no longer knows job {state.job_id}{reused}"
            if state.job_id in answer.runaway:
                runaway = f"job {state.job_id} goes on in Slurm's accounting alone"
                why = f"{runaway}: its controller does not know it"
            lost = Ending(Outcome.LOST, f"{why}, and the attempt left no result")
            ending = Ending(result.outcome, result.reason) if result else lost
            ledger.record_end(state.folder, state.attempt, ending)
    return bool(answer.endings or unknown)


def _is_current(state: RunState) -> bool:
    """Whether a run is still in the job that was asked about, which notes the next one before it ends."""
    same_job = (state.attempt, state.job_id)
    return any(
        (now.attempt, now.job_id) == same_job and must_ask_slurm(now) for now in states_of([state.folder])
    )


def must_ask_slurm(state: RunState) -> bool:
    """Whether a run is in flight, or was stopped by a signal whose cause only Slurm knows."""
    return state.in_flight or (state.outcome is Outcome.CANCELLED and not state.event("ended"))


def _is_unknown(state: RunState, answer: client.Poll) -> bool:
    """Whether Slurm does not know a run's job, and should.

    It may hide the jobs of other users. One that goes on for accounting alone may have ended a moment ago, or
    its node may be out of the controller's reach: it counts as long as it writes.
    """
    job_id, submitted = state.job_id, state.event("submitted")
    assert job_id and state.latest
    if job_id in answer.endings or job_id in answer.alive or not answer.complete:
        return False
    if submitted and now() - submitted.time < ACCOUNTING_DELAY:
        return False
    if job_id in answer.runaway and now() - last_sign(state.latest) < ACCOUNTING_DELAY:
        return False
    return os.getuid() in (0, _owner(state))


def _owner(state: RunState) -> int:
    """Id of the user who submitted a run's latest attempt."""
    assert state.latest
    return state.latest.path.stat().st_uid


def repair(states: Iterable[RunState]) -> bool:
    """Repair the orphans among these runs; returns whether anything was written.

    Raises:
        SchedulerError: an array may have been submitted, and Slurm cannot be reached.
    """
    studies = defaultdict(list)
    for state in recordable(filter(orphaned, states)):
        studies[state.folder.path.parent].append(state.folder)
    repaired = False
    for study, folders in studies.items():
        with study_lock(study, wait_seconds=0) as held:
            if not held:
                continue  # another launch is running, and repairs before it submits
            # Read again: what looked orphaned before the lock may have been another launcher's work in
            # progress.
            orphans = [state for state in map(ledger.state, folders) if orphaned(state)]
            # In this order: Slurm knows what an sbatch has submitted that has ended by now.
            intents = filter(None, map(client.intent_of, orphans))
            busy = _sbatch_runs({intent.submission for intent in intents})
            jobs = jobs_by_name(orphans, study.stat().st_uid)
            for state in orphans:
                folder, number = state.folder, state.attempt
                intent = state.event("intent")
                if job_id := jobs.get(folder.path):
                    ledger.record_job(folder, number, job_id)
                elif intent and busy:
                    continue  # the sbatch outlived its launcher, and may still submit
                elif ledger.is_untouched(folder, number):
                    ledger.release(folder, number, "the launcher died before starting it")
                elif intent and now() - last_sign(folder.attempt(number)) < UNANSWERED:
                    continue  # its job started after Slurm was asked
                else:
                    ledger.record_end(folder, number, LOST)
            repaired = repaired or bool(orphans)
    return repaired


def orphaned(state: RunState) -> bool:
    """Whether an attempt was claimed but has no job and no process, and its launcher is dead."""
    if not state.in_flight or state.job_id:
        return False
    claim = state.event("claimed")
    by_this_process = claim and all(
        getattr(claim, name) == value for name, value in process.own_identity().items()
    )
    if by_this_process and (intent := state.event("intent")):
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


def jobs_by_name(states: Iterable[RunState], owner: int) -> dict[Path, str]:
    """Ids, by run, of the jobs that attempts were meant for, found in Slurm by the names of their arrays.

    Args:
        owner: id of the user who submitted them.

    Raises:
        NoAnswer: Slurm cannot be reached.
    """
    intents = {
        state.folder.path: intent
        for state in states
        if (intent := client.intent_of(state)) and intent.submission
    }
    if not intents:
        return {}
    names = {str(intent.submission) for intent in intents.values()}
    arrays = client.find(names, min(intent.time for intent in intents.values()), owner)
    return {
        path: array if intent.count == 1 else f"{array}_{intent.index}"
        for path, intent in intents.items()
        if (array := arrays.get(str(intent.submission)))
    }


def _sbatch_runs(names: Collection[str | None]) -> bool:
    """Whether an sbatch of one of these arrays is still running on this machine."""
    import psutil  # slow to import, and seldom needed

    options = {f"--job-name={name}" for name in names}
    commands = (running.info["cmdline"] or [] for running in psutil.process_iter(["cmdline"]))
    return any(
        command and Path(command[0]).name == "sbatch" and not options.isdisjoint(command)
        for command in commands
    )
