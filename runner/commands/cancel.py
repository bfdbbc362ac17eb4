"""Cancel runs that are in flight, and launches of a study that wait for their turn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from model.record.errors import UserError
from model.record.units import counted
from runner.commands._console import say
from runner.commands._options import Settings, StudyOrRun, is_file, study_name, study_or_run
from runner.execute import queue
from runner.state import process
from runner.state.ledger import RunState
from runner.state.runs import in_flight, study_names


def command(
    target: StudyOrRun,
    now: Annotated[
        bool, typer.Option("--now", help="On Slurm: do not wait for runs to save a checkpoint.")
    ] = False,
) -> None:
    from runner.execute.cancel import cancel
    from runner.execute.reconcile import reconciled

    root, studies = Settings.root, study_names(Settings.root)
    waiting = queue.waiting_studies(root)
    name = _named(target, waiting) if is_file(target) else target
    stopped = queue.leave(root, name)
    for launch in stopped:
        say(f"{launch} no longer waits for its turn")
    if stopped and name not in studies:
        return
    study, run = study_or_run(name, waiting)
    runs = [run] if run else reconciled(root, study)
    if not (open_ := in_flight(runs)):
        if name in studies and (own := queue.running(root, name)):
            ends = f"`kill {own.pid}` ends it"
            say(f"no run is in flight just now, but {own} still starts the remaining runs: {ends}")
            raise typer.Exit(1)
        say(f"nothing of {name} is in flight")
        return
    told = cancel(open_, at_once=now)
    say(f"cancelling {counted(len(told), 'run')} in flight, of {len(runs)}")
    if len(runs) > 1:
        _say_who_goes_on(open_)
    if len(told) < len(open_):
        raise typer.Exit(1)


def _named(file: str, waiting: Sequence[str]) -> str:
    """The study of a file, which may have been broken or removed since its launch."""
    try:
        return study_name(file, waiting)
    except UserError:
        if (stem := Path(file).stem) in {*waiting, *study_names(Settings.root)}:
            return stem
        raise


def _say_who_goes_on(told: Sequence[RunState]) -> None:
    """Name the local launches of these runs: they start their next run."""
    claims = [state.event("claimed") for state in told if not state.job_id]
    for pid in sorted({claim.pid for claim in claims if claim and claim.pid and process.alive(claim)}):
        continued = f"; it is suspended, and does either once `kill -CONT {pid}` continues it"
        ends = f"their launch, process {pid}, still starts the remaining runs: `kill {pid}` ends it"
        say(ends + (continued if process.suspended(pid) else ""))
