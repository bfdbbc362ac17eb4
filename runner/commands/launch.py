"""Run a study's remaining runs, on this machine or on a cluster."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator

import typer

from model.units import clock
from runner.commands._console import say, table
from runner.commands._options import (
    DryRun,
    Only,
    ProfileName,
    Rehearse,
    ScaleName,
    Sets,
    Settings,
    StudyPath,
    Wait,
    Yes,
)  # fmt: skip
from runner.plan import cost
from runner.plan.cost import Basis, Estimate
from runner.plan.plan import Plan, plan, rehearsal
from runner.spec.expansion import expand
from runner.spec.profile import read_cluster
from runner.spec.study import read_study
from runner.state.slurm import SchedulerError
from runner.state.tasks import Shape, jobs_folder, label


def command(
    study: StudyPath,
    profile: ProfileName = None,
    scale: ScaleName = None,
    sets: Sets = None,
    only: Only = None,
    dry_run: DryRun = False,
    rehearse: Rehearse = False,
    wait: Wait = None,
    yes: Yes = False,
) -> None:
    from runner.commands._start import start

    cluster, parsed = read_cluster(profile), read_study(study)
    at = parsed.scale_for(scale, cluster.profile.scale)
    planned = plan(parsed, expand(parsed, at, sets or (), only or ()), at, cluster, Settings.root)
    if dry_run:
        _show(planned)
        return
    if rehearse:
        short = rehearsal(planned)
        say(f"rehearsal: {len(short.runs)} runs of two steps, as study {short.study.name}")
        raise typer.Exit(start(short, wait=True))
    _say_price(planned)
    if cluster.profile.executor == "slurm" and not yes and sys.stdin.isatty():
        typer.confirm(f"Submit {len(planned.left)} runs to {cluster.name}?", abort=True)
    raise typer.Exit(start(planned, wait))


def _say_price(planned: Plan) -> None:
    for line in price(cost.of_plan(planned)):
        say(line)


def _show(planned: Plan) -> None:
    """Print the runs, what a launch would do with each, the cost, and on Slurm the batch scripts."""
    left = {run.run_id for run in planned.left}
    rows = [
        [
            run.run_id,
            label(run),
            run.expected_outcome.value,
            "start" if run.run_id in left else f"skip: {state.outcome or state.phase}" if state else "",
        ]
        for run, state in planned.runs
    ]
    table(["run", "factors", "expected", "action"], rows)
    _say_price(planned)
    if planned.cluster.profile.executor == "slurm":
        _show_scripts(planned)


def _show_scripts(planned: Plan) -> None:
    from runner.execute.slurm.script import script

    profile, name = planned.cluster.profile, planned.study.name
    for shape, count in Counter(Shape.of(run) for run in planned.left).items():
        text = script(profile, jobs_folder(planned.root / name), name, shape, count)
        sys.stdout.write("\n" + text)
        _say_start(text)


def _say_start(script: str) -> None:
    """Print when Slurm expects the first job to start, or why there is no estimate."""
    from runner.execute.slurm.client import expected_start

    try:
        start = expected_start(script)
    except SchedulerError as error:
        say(f"no start estimate: {error}")
    else:
        say(f"Slurm expects the first job to start at {start}" if start else "Slurm gives no start estimate")


def price(cost: Estimate) -> Iterator[str]:
    """Yield lines for the user: total cost and its basis, runs that exceed their time limit, a note."""
    if not cost.runs:
        yield "nothing to run"
        return
    yield f"{_total(cost)}: {cost.basis}"
    limits = [limit for run in cost.runs if (limit := run.limit_passed)]
    for limit, count in sorted(Counter(limits).items()):
        yield f"{count} of them will exceed the time limit of {clock(limit)}"
    if cost.note:
        yield cost.note


def _total(cost: Estimate) -> str:
    if cost.wall_seconds is None:
        return "cost unknown"
    hours = f"{_hours(cost.gpu_hours or 0.0)} GPU-hours" if cost.gpus else ""
    nodes = "" if cost.node_hours is None else f" ({_hours(cost.node_hours)} node-hours)"
    bound = {0: "about", len(cost.runs): "at most"}.get(cost.counts[Basis.LIMIT], "at most about")
    paid = f"{hours}{nodes}, " if hours or nodes else ""
    return f"{bound} {paid}{clock(cost.wall_seconds)} with {cost.parallel} at once"


def _hours(hours: float) -> str:
    return f"{hours:,.1f}" if hours >= 1 else f"{hours:.2g}"
