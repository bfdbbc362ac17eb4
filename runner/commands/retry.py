"""Restart ended runs as planned."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated

import typer

from model.disk.record import Outcome
from model.errors import UserError, did_you_mean
from runner.commands._console import say
from runner.commands._options import ProfileName, Settings, Wait, study_name
from runner.state.ledger import RunState


def command(
    study: Annotated[str, typer.Argument(metavar="STUDY", help="A study's name, or its file.")],
    outcome: Annotated[
        list[str] | None, typer.Option(help="Runs with this outcome; repeatable [default: all unexpected].")
    ] = None,
    profile: ProfileName = None,
    wait: Wait = None,
) -> None:
    from runner.commands._start import start
    from runner.execute.reconcile import reconciled
    from runner.plan.plan import planned_again
    from runner.spec.profile import read_cluster

    chosen = _ended(reconciled(Settings.root, study_name(study)), outcome)
    if not chosen:
        say("nothing to restart")
        return
    cluster = read_cluster(profile or chosen[0].run.profile)
    raise typer.Exit(start(planned_again(Settings.root, chosen, cluster), wait))


def _ended(found: Iterable[RunState], outcomes: Sequence[str] | None) -> list[RunState]:
    """Ended runs with one of these outcomes; by default, those that neither completed nor ended as expected.

    Raises:
        UserError: no such outcome.
    """
    valid = [outcome.value for outcome in Outcome]
    if unknown := [word for word in outcomes or () if word not in valid]:
        raise UserError(f"--outcome {unknown[0]}: no such outcome {did_you_mean(unknown[0], valid)}")
    over = [state for state in found if state.phase == "ended"]
    return [state for state in over if (state.outcome in outcomes if outcomes else not state.done)]
