"""Restart runs that have ended, as they were planned.

Examples:
  runner retry first
  runner retry first --outcome timeout
  runner retry first/3f9c
  runner retry first --set parallel.shard=2
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from model.record.config import AXES
from model.record.errors import UserError, did_you_mean
from model.record.outcome import Outcome
from runner.commands._console import say
from runner.commands._options import OtherProfile, Settings, StudyOrRun, Wait, study_or_run
from runner.commands._runs import by_outcome
from runner.state.runs import name_of

# A profile's settings that are part of a run's plan, and the fields that hold them.
_PLANNED = {
    "memory": "memory_bytes",
    "time_limit": "time_limit_seconds",
    "checkpoint_every": "checkpoint_seconds",
}


def command(
    target: StudyOrRun,
    outcome: Annotated[
        list[str] | None,
        typer.Option(help="Runs with this outcome; commas between several [default: all unexpected]."),
    ] = None,
    profile: OtherProfile = None,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="PARALLEL.AXIS=N",
            help="Continue with a different number of processes, such as on fewer GPUs; repeatable.",
        ),
    ] = None,
    wait: Wait = None,
) -> None:
    from runner.commands._start import start
    from runner.execute.reconcile import reconciled
    from runner.plan.plan import common_cluster, planned_again

    changes = _changes(sets or ())
    study, run = study_or_run(target)
    runs = [
        state for state in reconciled(Settings.root, study) if run is None or name_of(state) == name_of(run)
    ]
    ended = [state for state in by_outcome(runs, outcome or (), list(Outcome)) if state.phase == "ended"]
    # By default, those that neither completed nor ended as expected.
    chosen = [state for state in ended if outcome or not state.done]
    if not chosen:
        say("nothing to restart")
        return
    cluster = common_cluster(chosen, profile)
    planned = planned_again(Settings.root, chosen, cluster, changes)
    if profile:
        kept = [
            name
            for name, field in _PLANNED.items()
            if any(getattr(state.run, field) != getattr(cluster.profile, field) for state in chosen)
        ]
        if kept:
            names = ", ".join(kept)
            say(f"runs keep the {names} that they were planned with; `runner launch` takes the profile's")
    raise typer.Exit(start(planned, wait))


def _changes(sets: Sequence[str]) -> dict[str, int]:
    """The axes of `parallel` to change.

    Raises:
        InvalidFile: one set twice.
        UserError: another setting, or no number of processes.
    """
    from runner.inputs.options import overrides
    from runner.inputs.settings import leaves

    axes = [f"parallel.{name}" for name in AXES]
    for dotted in (text.partition("=")[0].strip() for text in sets):
        if dotted not in axes:
            # A name without a section, such as `shrd`, may be an axis of `parallel`.
            whole = "." in dotted or dotted in leaves()
            near = did_you_mean(dotted if whole else f"parallel.{dotted}", axes)
            raise UserError(
                f"--set {dotted}: a run restarts as planned, and only its processes can change {near}"
            )
    numbers = {dotted: value for dotted, (value, _) in overrides(sets, ()).items()}
    for dotted, value in numbers.items():
        if type(value) is not int or value < 1:
            raise UserError(f"--set {dotted}={value}: expected a number of processes, 1 or more")
    return {dotted.partition(".")[2]: value for dotted, value in numbers.items()}
