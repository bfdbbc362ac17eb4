"""Cancel runs that are in flight, and launches of a study that wait for their turn."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from model.record.errors import UserError
from model.record.units import counted
from runner.commands._console import say
from runner.commands._options import Settings, StudyOrRun, names_file, study_name, study_or_run
from runner.execute import queue
from runner.state import process
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
    name = target
    if names_file(target):
        try:
            name = study_name(target, waiting)
        except UserError:  # its file may have been broken or removed since the launch
            name = Path(target).stem
            if name not in {*waiting, *studies}:
                raise
    stopped = queue.end_waiting(root, name)
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
    cancelled = cancel(open_, at_once=now)
    say(f"cancelling {counted(len(cancelled), 'run')} in flight, of {len(runs)}")
    if len(runs) > 1:  # their local launches start the next run
        claims = [state.event("claimed") for state in open_ if not state.job_id]
        for pid in sorted({claim.pid for claim in claims if claim and claim.pid and process.alive(claim)}):
            continued = f"; it is suspended, and does either once `kill -CONT {pid}` continues it"
            ends = f"their launch, process {pid}, still starts the remaining runs: `kill {pid}` ends it"
            say(ends + (continued if process.is_suspended(pid) else ""))
    if len(cancelled) < len(open_):
        raise typer.Exit(1)
