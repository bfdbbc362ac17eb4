"""What has been spent and reserved under a limit, by the run folders and `STUDY/budget.jsonl`."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import Field

from model.record.config import Frozen
from model.record.files import Unreadable, read_lines
from model.record.folder import RunFolder, run_folders
from model.record.records import SCHEMA_VERSION, Version, now
from runner.inputs.document import Mark
from runner.state import process

Unit = Literal["gpu_hours", "node_hours"]
NAME = "budget.jsonl"
# Whether a launcher on another machine is alive is unknown: its reservation counts this long without runs.
FOREIGN_SECONDS = 600.0


@dataclass(frozen=True)
class Limit:
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
        return profile == self.profile and not _another(file, self.profile_file)

    @property
    def words(self) -> str:
        """The unit for messages: `GPU-hours` or `node-hours`."""
        return {"gpu_hours": "GPU-hours", "node_hours": "node-hours"}[self.unit]


@cache
def _another(file: str | None, mine: Path | None) -> bool:
    """Whether a recorded file is another profile of the same name.

    A file that is unknown, gone or a copy is the same one: a folder that moved must not reset its budget.
    """
    if file is None or mine is None or file == str(mine):
        return False
    try:
        return not mine.samefile(file) and mine.read_bytes() != Path(file).read_bytes()
    except OSError:
        return False


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


def measure(root: Path, limit: Limit) -> Usage:
    """Add up spending and reservations under a limit. Raises Unreadable if `budget.jsonl` is damaged."""
    usage, shares, whole = Usage(), _Shares(root), _Nodes()
    for folder in run_folders(root, limit.study):
        found = shares.of(folder)
        try:
            if limit.profile is None or limit.covers(folder.run.profile, folder.run.profile_file):
                _add(usage, folder, limit, found, whole)
        except Unreadable:
            usage.unreadable += 1
    for share, line in shares.without_folder(limit.study):
        if limit.covers(line.profile, line.profile_file) and _pending(line, ()):
            _hold(usage, share.hours(limit.unit))
    usage.spent += whole.hours
    return usage


_Found = tuple[Reserved, Reservation]


class _Shares:
    """The newest reservation of each run, with the launch that made it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.known: dict[str, dict[str, _Found]] = {}

    def of(self, folder: RunFolder) -> _Found | None:
        return self.read(folder.path.parent.name).get(folder.path.name)

    def without_folder(self, study: str | None) -> Iterator[_Found]:
        """Reservations of runs whose folders do not exist yet."""
        for path in self.root.glob(f"{study or '*'}/{NAME}"):
            for run_id, found in self.read(path.parent.name).items():
                if not (path.parent / run_id).is_dir():
                    yield found

    def read(self, study: str) -> dict[str, _Found]:
        if study not in self.known:
            lines = read_lines(self.root / study / NAME, Reservation)
            self.known[study] = {run: (share, line) for line in lines for run, share in line.runs.items()}
        return self.known[study]


class _Nodes:
    """Usage of whole nodes: time that several runs share on one node counts once."""

    def __init__(self) -> None:
        self.spans: dict[tuple[str, int], list[tuple[float, float]]] = {}

    def add(self, use: _Use) -> None:
        self.spans.setdefault((use.job, use.nodes), []).append((use.start, use.end))

    @property
    def hours(self) -> float:
        seconds = 0.0
        for (_, nodes), spans in self.spans.items():
            until = float("-inf")
            for start, end in sorted(spans):
                seconds += nodes * max(0.0, end - max(start, until))
                until = max(until, end)
        return seconds / 3600


@dataclass(frozen=True)
class _Use:
    """When an attempt held its GPUs, in Unix seconds, and whether it is over."""

    job: str
    start: float
    end: float
    gpus: int
    nodes: int
    over: bool

    @property
    def seconds(self) -> float:
        """Duration; 0 if the clock was set back."""
        return max(0.0, self.end - self.start)


def _uses(folder: RunFolder) -> Iterator[_Use]:
    for attempt in folder.attempts():
        manifest, over = attempt.manifest, attempt.released or attempt.settled is not None
        end = attempt.ended_at or (attempt.noted[-1].time if attempt.released else now())
        start = attempt.started_at if manifest and attempt.started_at else end  # never started: no cost
        job = manifest.slurm.get("SLURM_JOB_ID") if manifest else None
        gpus, nodes = (manifest.gpus or 0, manifest.nodes or 1) if manifest else (0, 1)
        yield _Use(job or str(folder.path), start.timestamp(), end.timestamp(), gpus, nodes, over)


def _add(usage: Usage, folder: RunFolder, limit: Limit, found: _Found | None, whole: _Nodes) -> None:
    """Add a run's attempts: finished ones to the spending, one in flight to the reservations."""
    attempts = list(_uses(folder))
    share = found[0] if found else _NOTHING
    for attempt in attempts:
        # An attempt that ended before it opened a device records 0 GPUs, although they were allocated.
        rates = share.model_copy(update={"gpus": attempt.gpus or share.gpus})
        used = rates.used(limit.unit, attempt.seconds)
        if not attempt.over:
            _hold(usage, max(used, rates.hours(limit.unit)))
            usage.unreserved += found is None
        elif limit.unit == "node_hours":
            whole.add(attempt)
        else:
            usage.spent += used
    if found and all(attempt.over for attempt in attempts) and _pending(found[1], attempts):
        _hold(usage, share.hours(limit.unit))


def _hold(usage: Usage, hours: float) -> None:
    usage.reserved += hours
    usage.in_flight += 1


def _pending(line: Reservation, attempts: Sequence[_Use]) -> bool:
    """Whether the launcher that made a reservation may still claim the run."""
    made = line.time.timestamp()
    if any(attempt.end > made for attempt in attempts):
        return False
    if line.host != socket.gethostname():
        return now().timestamp() - made < FOREIGN_SECONDS
    return process.runs(line.pid, line.pid_started)
