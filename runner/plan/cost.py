"""Estimates the cost of a launch.

Every number comes with its basis: past runs of the same configuration, past runs of the same shape with a
different number of steps, or the time limit, which is an upper bound.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from pydantic import ValidationError

from model.record.config import RunConfig, sections_of
from model.record.errors import UserError
from model.record.outcome import Outcome
from model.record.records import RunRecord
from model.record.units import clock, counted
from runner.inputs.profile import Profile
from runner.plan.layout import Layout, layout
from runner.plan.plan import Plan
from runner.state.attempts import JobShape

_HISTORY = """
SELECT config, profile, outcome, gpu, step_seconds, wall_seconds, steps, gpus FROM runs
WHERE imported IS NULL AND wall_seconds > 0 AND (outcome = 'completed' OR outcome = expected_outcome)
  AND measured_attempt = deciding_attempt  -- another number of processes would have taken another time
"""
# Settings that do not change how long a step takes. All others must match, including any added later.
_NEUTRAL: dict[str, dict[str, Any]] = {
    "call": {"steps": 1},
    "data": {"path": "-", "text_column": "-", "tokenizer": "-"},
    "model": {"rope_theta": 1.0, "norm_eps": 1.0},
    "train": {
        "steps": 1, "learning_rate": 1.0, "warmup_steps": 0, "clip_norm": 1.0, "weight_decay": 0.0,
        "log_every": 1,
    },
    "inference": {"steps": 1, "warmup_steps": 0},
}  # fmt: skip


@dataclass(frozen=True)
class PastRun:
    """The duration of a run that completed or ended as expected.

    Attributes:
        step_seconds: median after the warm-up; None if the run had no such step.
        wall_seconds: total over all attempts.
    """

    config: RunConfig
    profile: str
    outcome: Outcome
    gpu: str | None
    step_seconds: float | None
    wall_seconds: float
    steps: int | None
    gpus: int | None


@dataclass(frozen=True)
class History:
    """Past runs, and a note if some could not be used."""

    runs: tuple[PastRun, ...] = ()
    note: str | None = None


def history(root: Path) -> History:
    """Read past runs from the root's database. Never raises: a problem goes into the note."""
    from analysis.store import database as store

    if not store.database(root).exists():
        return History()
    import duckdb

    try:
        with store.open_for_reading(root) as connection:
            rows = connection.execute(_HISTORY).fetchall()
    except (UserError, duckdb.Error, OSError) as error:
        return History(note=f"past runs are not used: {store.first_lines(error)}")
    runs = list[PastRun]()
    for config, profile, outcome, *measured in rows:
        with suppress(ValidationError):
            runs.append(PastRun(RunConfig.model_validate_json(config), profile, Outcome(outcome), *measured))
    left_out = len(rows) - len(runs)
    note = f"{left_out} past runs from another version are not used" if left_out else None
    return History(tuple(runs), note)


class Basis(StrEnum):
    """Where the estimate of a run's wall time comes from; the values appear in messages."""

    SAME = "from past runs of the same configuration"
    SCALED = "from past runs with a different number of steps"
    LIMIT = "from the time limit (an upper bound)"
    UNKNOWN = "unknown (no past runs, and no time_limit in the profile)"


@dataclass(frozen=True)
class RunCost:
    """Estimated wall time of one run; None if nothing is known.

    Attributes:
        gpus: that the run uses.
        layout: of its job.
    """

    run_id: str
    wall_seconds: float | None
    basis: Basis
    shape: JobShape
    gpus: int
    layout: Layout

    @property
    def limit_passed(self) -> int | None:
        """The time limit in seconds if past runs suggest that the run will exceed it, else None."""
        limit = self.shape.time_limit_seconds
        if self.wall_seconds is None or self.basis is Basis.LIMIT or not limit:
            return None
        return limit if self.wall_seconds > limit else None


@dataclass(frozen=True)
class CostEstimate:
    """Estimated cost of a launch.

    Attributes:
        parallel: maximum number of concurrent runs.
        profile, profile_file: the profile's name and file.
        whole: whether nodes are allocated whole, and not shared with other users.
        note: why some past runs are not used.
        room: GPUs of this machine, which concurrent runs share; None where that limits nothing.
    """

    runs: tuple[RunCost, ...]
    parallel: int
    profile: str = ""
    profile_file: str | None = None
    whole: bool = False
    note: str | None = None
    room: int | None = None

    @property
    def gpu_hours(self) -> float | None:
        """GPU-hours of all runs and all their GPUs; None if any run's wall time is unknown."""
        if not self._is_known:
            return None
        return sum((run.wall_seconds or 0.0) * run.gpus for run in self.runs) / 3600

    @property
    def node_hours(self) -> float | None:
        """Node-hours with runs packed in order, each node held until its last run ends; None if unknown."""
        if not (self._is_known and self.whole):
            return None
        longest = (max(run.wall_seconds or 0.0 for run in pack) * pack[0].layout.nodes for pack in self.packs)
        return sum(longest) / 3600

    @property
    def packs(self) -> list[tuple[RunCost, ...]]:
        """The runs grouped by job, in order; only runs of the same shape share one."""
        alike = defaultdict(list)
        for run in self.runs:
            alike[run.shape].append(run)
        return [
            tuple(runs[start : start + runs[0].layout.runs])
            for runs in alike.values()
            for start in range(0, len(runs), runs[0].layout.runs)
        ]

    @property
    def wall_seconds(self) -> float | None:
        """Time from the first start to the last end; None if any run's wall time is unknown."""
        if not self._is_known:
            return None
        now, last, taken = 0.0, 0.0, 0
        running: list[tuple[float, int]] = []  # when each ends, and its GPUs; the next to end first
        # Runs start in order, as soon as a place and their GPUs are free.
        for run in self.runs:
            while len(running) == self.parallel or (
                running and self.room is not None and taken + run.gpus > self.room
            ):
                now, freed = heapq.heappop(running)
                taken -= freed
            end = now + (run.wall_seconds or 0.0)
            heapq.heappush(running, (end, run.gpus))
            taken, last = taken + run.gpus, max(last, end)
        return last

    @property
    def counts(self) -> Counter[Basis]:
        """Number of runs by basis."""
        return Counter(run.basis for run in self.runs)

    @property
    def basis(self) -> str:
        """`8 runs from past runs of the same configuration, 2 from the time limit (an upper bound)`."""
        (first, runs), *rest = [(basis, self.counts[basis]) for basis in Basis if self.counts[basis]]
        return ", ".join([f"{counted(runs, 'run')} {first}", *(f"{count} {basis}" for basis, count in rest)])

    @property
    def _is_known(self) -> bool:
        """Whether there is an estimate of every run's wall time."""
        return all(run.wall_seconds is not None for run in self.runs)


def estimate_plan(plan: Plan) -> CostEstimate:
    """Estimate the plan's remaining runs from past runs under its root."""
    runs = [run.on(plan.parallel(run)) for run in plan.left]
    return estimate(runs, plan.cluster.profile, history(plan.root))


def estimate(runs: Sequence[RunRecord], profile: Profile, past: History) -> CostEstimate:
    """Estimate these runs under a profile, from the best matching past runs, else from their time limits."""
    index, costs, room = PastRunIndex(past.runs), list[RunCost](), None
    layouts = cache(lambda processes: layout(profile, processes))
    for run in runs:
        seconds, basis = index.look_up(run)
        shape, limit = JobShape.of(run), run.time_limit_seconds
        if seconds is None:
            seconds, basis = limit, Basis.LIMIT if limit else Basis.UNKNOWN
        gpus = profile.gpus * shape.processes
        costs.append(RunCost(run.run_id, seconds, basis, shape, gpus, layouts(shape.processes)))
    if profile.executor == "local" and profile.gpus:
        # If the profile does not say how many there are, the fewest with which its queue would start.
        most = max((run.config.processes for run in runs), default=1)
        room = max(profile.gpus_per_node or profile.max_parallel, most)
    return CostEstimate(
        runs=tuple(costs),
        parallel=profile.max_parallel,
        profile=runs[0].profile if runs else "",
        profile_file=runs[0].profile_file if runs else None,
        whole=profile.slurm is not None and profile.slurm.exclusive,
        note=past.note,
        room=room,
    )


def describe(estimate: CostEstimate) -> Iterator[str]:
    """Yield lines for the user: total cost and its basis, runs that exceed their time limit, a note.

    Runs without past timings are not in the total: a limit says little about a cost.
    """
    if not estimate.runs:
        yield "nothing to start"
        return
    parts = {basis: tuple(run for run in estimate.runs if run.basis is basis) for basis in Basis}
    if timed := parts[Basis.SAME] + parts[Basis.SCALED]:
        of_timed = replace(estimate, runs=timed)
        paid = f"{_priced(of_timed)}, " if _priced(of_timed) else ""
        clock_time = clock(of_timed.wall_seconds or 0.0)
        yield f"about {paid}{clock_time} with {of_timed.parallel} at once: {of_timed.basis}"
    if limited := parts[Basis.LIMIT]:  # what these can cost: `limit 1:00:00 per run, at most 8.0 GPU-hours`
        least, *others = sorted({run.wall_seconds or 0.0 for run in limited})
        span = f"limits {clock(least)} to {clock(others[-1])}" if others else f"limit {clock(least)}"
        paid = _priced(replace(estimate, runs=limited))
        most = f", at most {paid}" if paid else ""
        yield f"no estimate yet{_of_all(limited, estimate)}; {span} per run{most}"
    if unknown := parts[Basis.UNKNOWN]:
        yield f"no estimate yet{_of_all(unknown, estimate)}; the profile has no time_limit"
    limits = [limit for run in estimate.runs if (limit := run.limit_passed)]
    for limit, count in sorted(Counter(limits).items()):
        yield f"{count} of them will exceed the time limit of {clock(limit)}"
    if estimate.note:
        yield estimate.note


def _of_all(part: Sequence[RunCost], estimate: CostEstimate) -> str:
    """` for 2 of the 6 runs`; nothing if it is all of them."""
    return f" for {len(part)} of the {len(estimate.runs)} runs" if len(part) < len(estimate.runs) else ""


def _priced(estimate: CostEstimate) -> str:
    """`8.0 GPU-hours (2.0 node-hours)`, as far as there are such."""
    hours = f"{_hours(estimate.gpu_hours or 0.0)} GPU-hours" if any(run.gpus for run in estimate.runs) else ""
    nodes = "" if estimate.node_hours is None else f" ({_hours(estimate.node_hours)} node-hours)"
    return f"{hours}{nodes}".strip()


def _hours(hours: float) -> str:
    return f"{hours:,.1f}" if hours >= 1 else f"{hours:.2g}"


_Key = tuple[str, RunConfig]


class PastRunIndex:
    """Past runs, indexed by configuration and by shape."""

    def __init__(self, past: Iterable[PastRun]) -> None:
        self.same: dict[_Key, list[PastRun]] = defaultdict(list)
        self.alike: dict[_Key, list[PastRun]] = defaultdict(list)
        self.answers: dict[tuple[_Key, Outcome], tuple[float | None, Basis]] = {}
        for run in past:
            same = (run.profile, _without_seed(run.config))
            self.same[same].append(run)
            self.alike[run.profile, _shape(same[1])].append(run)

    def look_up(self, run: RunRecord) -> tuple[float | None, Basis]:
        """Wall seconds and their basis; None if no past run matches."""
        if not self.same:
            return None, Basis.UNKNOWN
        key = (run.profile, _without_seed(run.config))
        if (key, run.expected_outcome) not in self.answers:
            self.answers[key, run.expected_outcome] = self.match(run, key)
        return self.answers[key, run.expected_outcome]

    def match(self, run: RunRecord, key: _Key) -> tuple[float | None, Basis]:
        """Wall seconds and their basis, from past runs of the configuration, else of its shape."""
        for outcome in dict.fromkeys([run.expected_outcome, Outcome.COMPLETED]):
            if same := [past.wall_seconds for past in self.same.get(key, ()) if past.outcome is outcome]:
                return median(same), Basis.SAME
        alike = self.alike.get((run.profile, _shape(key[1])), [])
        if run.expected_outcome.is_early:
            early = [past.wall_seconds for past in alike if past.outcome is run.expected_outcome]
            return (median(early) if early else None), Basis.SCALED
        # Past start-up time plus the planned steps at the past pace, of runs that measured their steps.
        paces = [
            (past.wall_seconds, past.steps, past.step_seconds)
            for past in alike
            if past.outcome is Outcome.COMPLETED and past.step_seconds and past.steps
        ]
        if not paces:
            return None, Basis.SCALED
        pace = median(step_seconds for _, _, step_seconds in paces)
        startup = median(seconds - steps * step_seconds for seconds, steps, step_seconds in paces)
        return max(0.0, startup) + run.config.section.steps * pace, Basis.SCALED


def _without_seed(config: RunConfig) -> RunConfig:
    return config.model_copy(update={"seed": 0})


def _shape(config: RunConfig) -> RunConfig:
    """The configuration with every setting that does not affect step time set to a fixed value."""
    read = {name: part for name in sections_of(config.task) if (part := getattr(config, name))}
    sections = {name: part.model_copy(update=_NEUTRAL.get(name, {})) for name, part in read.items()}
    return config.model_copy(update={"seed": 0, **sections})
