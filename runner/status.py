"""Where every run stands, after asking the scheduler and looking for lost processes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import cache
from pathlib import Path

from pydantic import ValidationError

from model.errors import UserError, did_you_mean
from model.files import Unreadable
from model.record import Outcome, StepRecord, folders, now, run_folders
from runner import ledger, scheduler
from runner.console import say
from runner.ledger import RunState
from runner.outcomes import Ending
from runner.repair import repair
from runner.scheduler import Poll

ACCOUNTING_DELAY = timedelta(minutes=2)  # from sbatch until accounting surely knows a job


def states(root: Path, study: str | None = None) -> list[RunState]:
    """Every run under the root, or of one study; reading only. One that cannot be read is left out."""
    found = []
    for folder in run_folders(root, study):
        try:
            found.append(ledger.standing(folder))
        except Unreadable as error:
            _say_once(f"{error}; this run is left out")  # collect puts the file into quarantine
    # By seconds: to compare two datetimes of 10,000 asks both for their time zone, 0.1 s in all.
    return sorted(found, key=lambda state: (state.brief.study, state.brief.created_at.timestamp()))


@cache
def _say_once(text: str) -> None:
    say(text)


def reconciled(root: Path, study: str | None = None) -> list[RunState]:
    """Every run, after noting in the ledgers what ended without a word and repairing what was orphaned.

    Raises:
        SchedulerError: runs are in flight on Slurm and it cannot be asked.
    """
    found = states(root, study)
    if repair(found):
        found = states(root, study)
    in_doubt = [state for state in found if state.job_id and _in_doubt(state)]
    poll = scheduler.poll(state.job_id for state in in_doubt if state.job_id)
    if poll.problem and in_doubt:
        say(f"{poll.problem}: how jobs ended is not known until it answers again")
    endings = [(state, ending) for state in in_doubt if (ending := _ending(state, poll))]
    for state, ending in endings:
        ledger.ended(state.folder, state.attempt, ending)
    return states(root, study) if endings else found


def _in_doubt(state: RunState) -> bool:
    """In flight, or ended by a signal of which only Slurm knows the cause."""
    return state.in_flight or (state.outcome is Outcome.CANCELLED and not state.event("ended"))


def _ending(state: RunState, poll: Poll) -> Ending | None:
    job_id = state.job_id
    assert job_id
    ending = poll.endings.get(job_id)
    if ending is None and (job_id in poll.alive or not poll.complete or _fresh(state)):
        return None
    result = state.folder.result(state.attempt)
    own = Ending(result.outcome, result.reason) if result else None
    if ending:
        # To Slurm a job has COMPLETED that was stopped by a signal which Slurm did not send.
        return own if own and ending.outcome is Outcome.LOST else ending
    lost = f"Slurm does not know job {job_id} any more, and the attempt left no result"
    return own or Ending(Outcome.LOST, lost)


def _fresh(state: RunState) -> bool:
    """Whether accounting may not know the job yet."""
    submitted = state.event("submitted")
    return submitted is not None and now() - submitted.time < ACCOUNTING_DELAY


def find(root: Path, name: str) -> RunState:
    """One run by its id, or the start of it.

    Raises:
        UserError: none or several match.
    """
    found = [state for state in states(root) if state.brief.run_id.startswith(name)]
    if len(found) == 1:
        return found[0]
    if found:
        raise UserError(
            f"'{name}' is the start of {len(found)} runs: {', '.join(state.brief.run_id for state in found)}"
        )
    raise UserError(f"no run '{name}' under {root}; `runner status` lists them")


def study_names(root: Path) -> list[str]:
    """Studies under the root."""
    return [name for name in folders(root) if next(run_folders(root, name), None)]


def study_name(root: Path, given: str) -> str:
    """A study by name, or by the path of its file.

    Raises:
        UserError: it has no runs under the root.
    """
    name = given
    if given.endswith((".yaml", ".yml")):
        from runner.study import read_study

        name = read_study(Path(given)).name
    if name not in (known := study_names(root)):
        raise UserError(f"no runs of study '{name}' under {root} {did_you_mean(name, known)}")
    return name


def ended(found: Iterable[RunState], outcomes: Sequence[str] | None) -> list[RunState]:
    """Runs that have ended, with one of these outcomes, or without any given otherwise than expected.

    Raises:
        UserError: there is no such outcome.
    """
    valid = [outcome.value for outcome in Outcome]
    if unknown := [word for word in outcomes or () if word not in valid]:
        raise UserError(f"--outcome {unknown[0]}: no such outcome {did_you_mean(unknown[0], valid)}")
    over = [state for state in found if state.phase == "ended"]
    return [state for state in over if (state.outcome in outcomes if outcomes else not state.done)]


def last_step(state: RunState) -> StepRecord | None:
    """The newest step record of the run's attempt."""
    if state.phase in ("planned", "queued"):
        return None
    path = f"{state.folder.path}/attempt-{state.attempt}/steps.jsonl"
    try:
        with open(path, "rb") as file:  # noqa: PTH123  10,000 times: half of what Path takes
            file.seek(max(0, file.seek(0, 2) - 8192))
            lines = file.read().split(b"\n")[:-1]
    except FileNotFoundError:
        return None
    for line in reversed(lines):
        with suppress(ValidationError):  # what a crash of the machine has left
            return StepRecord.model_validate_json(line)
    return None


def cancel(found: Iterable[RunState]) -> list[RunState]:
    """Stop runs that are in flight; which ones were told to.

    A job goes on where other runs share it; the run that is cancelled then finds that in its ledger.

    Raises:
        SchedulerError: Slurm could not be asked.
    """
    import psutil

    open_ = ledger.in_flight(found)
    shared = _shared_jobs(open_)
    scheduler.cancel(state.job_id for state in open_ if state.job_id and state.job_id not in shared)
    for state in open_:
        if state.job_id in shared:
            reason = "cancelled; its job goes on for the runs that share it"
            ledger.ended(state.folder, state.attempt, Ending(Outcome.CANCELLED, reason))
        manifest = state.folder.manifest(state.attempt)
        if not state.job_id and manifest and ledger.alive(manifest):
            psutil.Process(manifest.pid).terminate()
    return open_


def _shared_jobs(found: Sequence[RunState]) -> set[str]:
    """Jobs of these runs that others of their study, not among them, are in flight in."""
    mine = {state.folder.path for state in found}
    studies = {(path.parent.parent, path.parent.name) for path in mine}
    others = [state for root, study in studies for state in ledger.in_flight(states(root, study))]
    return {state.job_id for state in others if state.job_id and state.folder.path not in mine}
