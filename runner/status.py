"""Where every run stands, after asking the scheduler and looking for lost processes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from model.errors import UserError, did_you_mean
from model.record import Outcome, StepRecord, Unreadable, run_folders
from runner import ledger, scheduler
from runner.ledger import RunState
from runner.outcomes import Ending


def states(root: Path, study: str | None = None) -> list[RunState]:
    """Every run under the root, or of one study; reading only. A run.json that cannot be read is left out."""
    found = []
    for folder in run_folders(root, study):
        try:
            found.append(ledger.state(folder))
        except Unreadable:
            continue  # collect puts it into quarantine, with its reason
    return sorted(found, key=lambda state: (state.run.study, state.run.created_at))


def reconciled(root: Path, study: str | None = None) -> list[RunState]:
    """Every run, after noting in the ledger what ended without a word.

    Raises:
        SchedulerError: runs are in flight on Slurm and it cannot be asked.
    """
    before = states(root, study)
    endings = _slurm_endings(before) | _local_endings(before)
    for state in before:
        if ending := endings.get(_key(state)):
            ledger.ended(state.folder, state.attempt, ending)
    return states(root, study) if endings else before


def _slurm_endings(found: Iterable[RunState]) -> dict[Path, Ending]:
    """Slurm's word on attempts in flight, and on those that say only that they were told to stop."""
    open_ = {state.job_id: _key(state) for state in found if state.job_id and _in_doubt(state)}
    by_job = scheduler.endings(job_id for job_id in open_ if job_id)
    return {open_[job_id]: ending for job_id, ending in by_job.items()}


def _in_doubt(state: RunState) -> bool:
    told = any(event.event == "ended" for event in state.events)
    return state.phase in ("queued", "running") or (state.outcome is Outcome.CANCELLED and not told)


def _local_endings(found: Iterable[RunState]) -> dict[Path, Ending]:
    """Attempts on this machine whose launcher and process are both gone."""
    lost = Ending(Outcome.LOST, "the launcher and the run's process are gone, and left no result")
    return {_key(state): lost for state in found if state.phase in ("queued", "running") and _orphan(state)}


def _orphan(state: RunState) -> bool:
    manifest = state.folder.manifest(state.attempt)
    if state.job_id or (state.claim and ledger.alive(state.claim) is not False):
        return False
    return manifest is None or ledger.alive(manifest) is False


def _key(state: RunState) -> Path:
    return state.folder.path


def find(root: Path, name: str) -> RunState:
    """One run by its id, or the start of it.

    Raises:
        UserError: none or several match.
    """
    found = [state for state in states(root) if state.run.run_id.startswith(name)]
    if len(found) == 1:
        return found[0]
    if found:
        raise UserError(
            f"'{name}' is the start of {len(found)} runs: {', '.join(state.run.run_id for state in found)}"
        )
    raise UserError(f"no run '{name}' under {root}; `runner status` lists them")


def study_names(root: Path) -> list[str]:
    """Studies under the root."""
    return sorted({folder.path.parent.name for folder in run_folders(root)})


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


def last_step(state: RunState) -> StepRecord | None:
    """The newest step record of the run's attempt."""
    if not state.attempt:
        return None
    path = state.folder.attempt(state.attempt) / "steps.jsonl"
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - 8192))
            lines = file.read().split(b"\n")[:-1]
    except FileNotFoundError:
        return None
    return StepRecord.model_validate_json(lines[-1]) if lines else None


def cancel(found: Iterable[RunState]) -> list[RunState]:
    """Stop runs that are in flight; which ones were told to.

    Raises:
        SchedulerError: Slurm could not be asked.
    """
    import psutil

    open_ = [state for state in found if state.phase in ("queued", "running")]
    scheduler.cancel(state.job_id for state in open_ if state.job_id)
    for state in open_:
        manifest = state.folder.manifest(state.attempt)
        if not state.job_id and manifest and ledger.alive(manifest):
            psutil.Process(manifest.pid).terminate()
    return open_
