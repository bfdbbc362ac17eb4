"""Budgets: spending limits for all runs of a study or a profile. A launch reserves its share in advance.

Spending is computed from the run folders (usage.py). A reservation is a line in `STUDY/budget.jsonl` that
counts while its attempts are pending or in flight, so nobody has to release it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from model.record.errors import UserError
from model.record.files import append
from model.record.records import now
from model.record.units import counted
from runner.inputs.document import Document
from runner.inputs.problems import InvalidFile, Mark, Problem
from runner.inputs.profile import Budget, Cluster
from runner.plan.usage import NAME, Limit, Reservation, Reserved, Unit, Usage, measure
from runner.state import process
from runner.state.filesystem import locked

if TYPE_CHECKING:
    from runner.plan.cost import Estimate
    from runner.plan.plan import Plan


def of_study(name: str, budget: Budget | None, document: Document) -> list[Limit]:
    """A study's limits, which count its own runs only."""
    return [Limit(unit, hours, mark, study=name) for unit, hours, mark in _numbers(budget, document)]


def of_profile(cluster: Cluster) -> list[Limit]:
    """A profile's limits, which count all of its runs under a root."""
    numbers = _numbers(cluster.profile.budget, cluster.document)
    return [
        Limit(unit, hours, mark, profile=cluster.name, profile_file=cluster.file)
        for unit, hours, mark in numbers
    ]


def limits_of(plan: Plan) -> list[Limit]:
    """All limits on a launch: its study's and its profile's."""
    study = plan.study
    return of_study(study.name, study.file.budget, study.document) + of_profile(plan.cluster)


def _numbers(budget: Budget | None, document: Document) -> Iterator[tuple[Unit, float, Mark]]:
    if budget and budget.gpu_hours is not None:
        yield "gpu_hours", budget.gpu_hours, document.mark(("budget", "gpu_hours"))
    if budget and budget.node_hours is not None:
        yield "node_hours", budget.node_hours, document.mark(("budget", "node_hours"))


def reserve(root: Path, study: str, limits: Sequence[Limit], planned: Estimate) -> None:
    """Reserve the cost of a launch; call this right before the runs are claimed.

    Holds the root's lock, because launches of other studies may reserve at the same time.

    Raises:
        InvalidFile: the cost exceeds a budget or is unknown; the message has the budget's position.
        UserError: the root is not writable, or another launch holds its lock.
    """
    if not limits or not planned.runs:
        return
    with locked(root, f"another launch is using the budgets of {root}; try again when it is done"):
        if problems := exceeded(root, limits, planned):
            raise InvalidFile(problems)
        _write(root / study, planned)


def exceeded(root: Path, limits: Sequence[Limit], planned: Estimate) -> list[Problem]:
    """The budgets that a cost exceeds, each with its position; those too that it cannot be held against."""
    return [problem for limit in limits if (problem := _exceeded(root, limit, planned))]


def _exceeded(root: Path, limit: Limit, planned: Estimate) -> Problem | None:
    asked = planned.gpu_hours if limit.unit == "gpu_hours" else planned.node_hours
    budget = f"a budget of {limit.hours:g} {limit.words}"
    if asked is None:
        return Problem(limit.mark, f"{budget}, but {_why_unknown(limit, planned)}")
    usage = measure(root, limit)
    left = limit.hours - usage.spent - usage.reserved
    if asked <= left:
        return None
    text = (
        f"{budget}: this launch needs {asked:.4g} ({planned.basis}); {usage.spent:.4g} spent, "
        f"{usage.reserved:.4g} reserved by {counted(usage.in_flight, 'run')} in flight, "
        f"{max(0.0, left):.4g} left"
    )
    return Problem(
        limit.mark, text + _caveats(usage) + "; launch fewer runs with --only, or raise the budget"
    )


def _why_unknown(limit: Limit, planned: Estimate) -> str:
    if limit.unit == "node_hours" and planned.gpu_hours is not None:
        return "this profile shares nodes: set slurm.exclusive: true, or use gpu_hours instead"
    return f"the cost of this launch is unknown ({planned.basis}): give the profile a time_limit"


def _caveats(usage: Usage) -> str:
    said = ""
    if usage.unreserved:
        said += f" ({usage.unreserved} in flight without a reservation: only their usage so far is counted)"
    if usage.unreadable:
        said += f" ({counted(usage.unreadable, 'run folder')} cannot be read: not counted)"
    return said


def _write(folder: Path, planned: Estimate) -> None:
    runs = {
        run.run_id: Reserved(
            gpus=run.gpus,
            nodes=run.layout.nodes / len(pack),
            seconds=run.wall_seconds or 0.0,
            node_seconds=longest,
        )
        for pack in planned.packs
        for longest in [max(run.wall_seconds or 0.0 for run in pack)]
        for run in pack
    }
    whose = {"profile": planned.profile, "profile_file": planned.profile_file}
    line = Reservation(time=now(), **whose, runs=runs, **process.me())
    try:
        folder.mkdir(parents=True, exist_ok=True)
        append(folder / NAME, line, sync=True)
    except OSError as error:
        raise UserError(f"{folder}: {error.strerror}; choose another place with --root") from error
