"""Budgets: spending limits for all runs of a study or a profile. A launch reserves its share in advance.

Spending is computed from the run folders. A reservation is a line in `STUDY/budget.jsonl` that counts while
its attempts are pending or in flight, so nobody has to release it.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from model.record.config import Frozen
from model.record.files import Unreadable, append, read_lines
from model.record.folder import RunFolder, run_folders
from model.record.records import SCHEMA_VERSION, Version, now
from model.record.units import counted
from runner.inputs.document import Document, InvalidFile, Mark, Problem
from runner.inputs.profile import Budget, Cluster
from runner.state import process
from runner.state.filesystem import locked, not_writable

if TYPE_CHECKING:
    from runner.plan.cost import CostEstimate
    from runner.plan.plan import Plan

Unit = Literal["gpu_hours", "node_hours"]
NAME = "budget.jsonl"
# Whether a launcher on another machine is alive is unknown: its reservation counts this long without runs.
FOREIGN_SECONDS = 600.0


@dataclass(frozen=True)
class SpendingLimit:
    """A limit that a launch must not exceed.

    Attributes:
        unit: `gpu_hours` or `node_hours`.
        mark: position of the limit in its file.
        study, profile: only runs of these count; None for any.
        profile_file: the profile's file, because another one may have its name.
    """

    unit: Unit
    hours: float
    mark: Mark
    study: str | None = None
    profile: str | None = None
    profile_file: Path | None = None

    def covers(self, profile: str, file: str | None) -> bool:
        """Whether the runs of a profile count, by the name and file that they recorded."""
        if self.profile is None:
            return True
        return profile == self.profile and not _is_another(file, self.profile_file)


@cache
def _is_another(recorded: str | None, file: Path | None) -> bool:
    """Whether a recorded file is another profile of the same name.

    A file that is unknown, gone or a copy is the same one: a folder that moved must not reset its budget.
    """
    if recorded is None or file is None or recorded == str(file):
        return False
    try:
        return not file.samefile(recorded) and file.read_bytes() != Path(recorded).read_bytes()
    except OSError:
        return False


def profile_limits(cluster: Cluster) -> list[SpendingLimit]:
    """A profile's limits, which count all of its runs under a root."""
    budget = cluster.profile.budget
    return _limits(budget, cluster.document, profile=cluster.name, profile_file=cluster.file)


def limits_of(plan: Plan) -> list[SpendingLimit]:
    """All limits on a launch: its study's, which count the runs of this study, and its profile's."""
    study = plan.study
    return _limits(study.file.budget, study.document, study=study.name) + profile_limits(plan.cluster)


def _limits(budget: Budget | None, document: Document, **scope: Any) -> list[SpendingLimit]:
    """The limits of a budget.

    Args:
        scope: fields that say whose runs count.
    """
    units: tuple[Unit, ...] = ("gpu_hours", "node_hours")
    hours = {unit: getattr(budget, unit, None) for unit in units}
    return [
        SpendingLimit(unit, most, document.mark(("budget", unit)), **scope)
        for unit, most in hours.items()
        if most is not None
    ]


class Reserved(Frozen):
    """The most that one attempt of a run may cost.

    `gpus` and `nodes` also convert the attempt's actual time to its actual cost.
    """

    gpus: int
    nodes: float = Field(description="The run's share of its node; several, if it has them.")
    seconds: float
    node_seconds: float = Field(
        description="How long the node is held: until the longest of the runs that share it ends."
    )

    def hours(self, unit: Unit) -> float:
        """The reserved amount, in hours of this unit."""
        return self.used(unit, self.seconds if unit == "gpu_hours" else self.node_seconds)

    def used(self, unit: Unit, seconds: float) -> float:
        """The cost of an attempt that took this long, in hours of this unit."""
        return seconds * (self.gpus if unit == "gpu_hours" else self.nodes) / 3600


_NOTHING = Reserved(gpus=0, nodes=1.0, seconds=0.0, node_seconds=0.0)


class Reservation(Frozen):
    """One line of `budget.jsonl`: a launch's reservations by run id."""

    schema_version: Version = SCHEMA_VERSION
    time: datetime
    host: str
    pid: int
    pid_started: float
    profile: str
    profile_file: str | None = None
    runs: dict[str, Reserved]


def reserve(root: Path, study: str, limits: Sequence[SpendingLimit], planned: CostEstimate) -> None:
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
        runs = dict[str, Reserved]()
        for pack in planned.packs:
            longest = max(run.wall_seconds or 0.0 for run in pack)
            for run in pack:
                nodes, seconds = run.layout.nodes / len(pack), run.wall_seconds or 0.0
                runs[run.run_id] = Reserved(gpus=run.gpus, nodes=nodes, seconds=seconds, node_seconds=longest)
        line = Reservation(
            time=now(),
            profile=planned.profile,
            profile_file=planned.profile_file,
            runs=runs,
            **process.own_identity(),
        )
        folder = root / study
        try:
            folder.mkdir(parents=True, exist_ok=True)
            append(folder / NAME, line, sync=True)
        except OSError as error:
            raise not_writable(folder, error.strerror) from error


def exceeded(root: Path, limits: Sequence[SpendingLimit], planned: CostEstimate) -> list[Problem]:
    """The budgets that a cost exceeds, each with its position; those too that it cannot be held against."""
    problems = list[Problem]()
    for limit in limits:
        asked = planned.gpu_hours if limit.unit == "gpu_hours" else planned.node_hours
        unit = {"gpu_hours": "GPU-hours", "node_hours": "node-hours"}[limit.unit]
        budget = f"a budget of {limit.hours:g} {unit}"
        if asked is None:
            why = f"the cost of this launch is unknown ({planned.basis}): give the profile a time_limit"
            if limit.unit == "node_hours" and planned.gpu_hours is not None:
                why = "this profile shares nodes: set slurm.exclusive: true, or use gpu_hours instead"
            problems.append(Problem(limit.mark, f"{budget}, but {why}"))
            continue
        usage = measure(root, limit)
        left = limit.hours - usage.spent - usage.reserved
        if asked <= left:
            continue
        text = (
            f"{budget}: this launch needs {asked:.4g} ({planned.basis}); {usage.spent:.4g} spent, "
            f"{usage.reserved:.4g} reserved by {counted(usage.in_flight, 'run')} in flight, "
            f"{max(0.0, left):.4g} left"
        )
        if usage.unreserved:
            text += (
                f" ({usage.unreserved} in flight without a reservation: only their usage so far is counted)"
            )
        if usage.unreadable:
            text += f" ({counted(usage.unreadable, 'run folder')} cannot be read: not counted)"
        text += "; launch fewer runs with --only, or raise the budget"
        problems.append(Problem(limit.mark, text))
    return problems


@dataclass
class Usage:
    """Spending under a limit so far, and reservations, in hours of its unit.

    Attributes:
        reserved: hours reserved for runs in flight or about to start.
        in_flight: number of those runs.
        unreserved: how many of them were launched without a budget; only their usage so far counts.
        unreadable: number of unreadable run folders, which count as zero.
    """

    spent: float = 0.0
    reserved: float = 0.0
    in_flight: int = 0
    unreserved: int = 0
    unreadable: int = 0

    def hold(self, hours: float) -> None:
        """Count one more run in flight."""
        self.reserved += hours
        self.in_flight += 1


@dataclass(frozen=True)
class _AttemptUse:
    """When an attempt held its GPUs, in Unix seconds, and whether it is over."""

    job: str
    start: float
    end: float
    gpus: int
    nodes: int
    over: bool


_ReservedRun = tuple[Reserved, Reservation]  # with the launch that made it


def measure(root: Path, limit: SpendingLimit) -> Usage:
    """Add up spending and reservations under a limit. Raises Unreadable if `budget.jsonl` is damaged."""

    @cache
    def reservations(study: str) -> dict[str, _ReservedRun]:
        """The newest reservation of each run."""
        lines = read_lines(root / study / NAME, Reservation)
        return {run_id: (share, line) for line in lines for run_id, share in line.runs.items()}

    usage = Usage()
    on_nodes = list[_AttemptUse]()
    for folder in run_folders(root, limit.study):
        reserved = reservations(folder.path.parent.name).get(folder.path.name)
        try:
            if limit.profile is None or limit.covers(folder.run.profile, folder.run.profile_file):
                _add(usage, folder, limit, reserved, on_nodes)
        except Unreadable:
            usage.unreadable += 1
    for path in root.glob(f"{limit.study or '*'}/{NAME}"):
        for run_id, (share, line) in reservations(path.parent.name).items():
            has_folder = (path.parent / run_id).is_dir()
            if not has_folder and limit.covers(line.profile, line.profile_file) and _is_pending(line, ()):
                usage.hold(share.hours(limit.unit))

    # Of whole nodes, time that several runs of a job share counts once.
    spans = dict[tuple[str, int], list[tuple[float, float]]]()
    for use in on_nodes:
        spans.setdefault((use.job, use.nodes), []).append((use.start, use.end))
    seconds = 0.0
    for (_, nodes), of_job in spans.items():
        until = float("-inf")
        for start, end in sorted(of_job):
            seconds += nodes * max(0.0, end - max(start, until))
            until = max(until, end)
    usage.spent += seconds / 3600
    return usage


def _add(
    usage: Usage,
    folder: RunFolder,
    limit: SpendingLimit,
    reserved: _ReservedRun | None,
    on_nodes: list[_AttemptUse],
) -> None:
    """Add a run's attempts: finished ones to the spending or `on_nodes`, one in flight to the reserved."""
    uses = list[_AttemptUse]()
    for attempt in folder.attempts():
        manifest, over = attempt.manifest, attempt.released or attempt.settled is not None
        end = attempt.ended_at or (attempt.noted[-1].time if attempt.released else now())
        start = attempt.started_at if manifest and attempt.started_at else end  # never started: no cost
        job = (manifest.slurm.get("SLURM_JOB_ID") if manifest else None) or str(folder.path)
        gpus, nodes = (manifest.gpus or 0, manifest.nodes or 1) if manifest else (0, 1)
        uses.append(_AttemptUse(job, start.timestamp(), end.timestamp(), gpus, nodes, over))
    share = reserved[0] if reserved else _NOTHING
    for use in uses:
        # An attempt that ended before it opened a device records 0 GPUs, although they were allocated.
        rates = share.model_copy(update={"gpus": use.gpus or share.gpus})
        # No time passed if the clock was set back.
        used = rates.used(limit.unit, max(0.0, use.end - use.start))
        if not use.over:
            usage.hold(max(used, rates.hours(limit.unit)))
            usage.unreserved += reserved is None
        elif limit.unit == "node_hours":
            on_nodes.append(use)
        else:
            usage.spent += used
    if reserved and all(use.over for use in uses) and _is_pending(reserved[1], uses):
        usage.hold(share.hours(limit.unit))


def _is_pending(line: Reservation, attempts: Sequence[_AttemptUse]) -> bool:
    """Whether the launcher that made a reservation may still claim the run."""
    made = line.time.timestamp()
    if any(attempt.end > made for attempt in attempts):
        return False
    if line.host != socket.gethostname():
        return now().timestamp() - made < FOREIGN_SECONDS
    return process.is_running(line.pid, line.pid_started)
