"""How the processes of a run are spread over nodes, and which numbers of them a profile cannot give. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from model.record.errors import UserError
from model.record.records import RunRecord
from runner.inputs.cells import Cell
from runner.inputs.document import Problem
from runner.inputs.profile import Cluster, Profile
from runner.inputs.validation import in_plain_words

HERE = 8  # most processes of a run without GPUs on this machine, if its profile does not say
_TRIED = 512  # numbers of processes among which a suggestion is looked for: each validates a run anew


@dataclass(frozen=True)
class Layout:
    """How the processes of a job are spread over its nodes, the same number on each.

    Attributes:
        processes: per run.
        nodes: of the job.
        runs: number of runs that share the job; 1 if it has several nodes.
    """

    processes: int
    nodes: int
    runs: int

    @property
    def is_single(self) -> bool:
        """Whether the job has one process only."""
        return self.runs == self.processes == 1

    @property
    def per_node(self) -> int:
        """Processes on a node, of all the runs that share it."""
        return self.runs * self.processes // self.nodes


def layout(profile: Profile, processes: int) -> Layout:
    """The layout of a job for runs of this many processes.

    Raises:
        UserError: the profile cannot give them; names its key.
    """
    if processes == 1:
        return Layout(1, 1, profile.runs_per_job)
    key = "gpus_per_node" if profile.gpus else "processes_per_node"
    room = getattr(profile, key)
    if profile.executor == "local":
        # If the profile names no number of GPUs, the queue counts them later.
        limit = room if profile.gpus else room or HERE
        if limit is not None and processes > limit:
            text = f"{processes} processes are too many for this machine, since `{key}` is {limit}"
            raise UserError(f"{text}: use {limit} or fewer")
        return Layout(processes, 1, 1)
    if room is None:
        raise UserError(f"{processes} processes need a profile that sets `{key}`: add it")
    nodes, whole = -(-processes // room), bool(profile.gpus and profile.slurm and profile.slurm.exclusive)
    if unfit := _unfit(processes, room, whole):
        # The nearest numbers that nodes can take: always 1, and each multiple of their room.
        sides = (range(processes - 1, 0, -1), range(processes + 1, processes + room + 1))
        nearest = [next((n for n in side if not _unfit(n, room, whole)), None) for side in sides]
        numbers = " or ".join(str(number) for number in nearest if number)
        raise UserError(f"{processes} processes {unfit}, since `{key}` is {room}: use {numbers}")
    sharing = min(room // processes, profile.max_parallel) if whole and nodes == 1 else 1
    return Layout(processes, nodes, sharing)


def _unfit(processes: int, room: int, whole: bool) -> str | None:
    """Why nodes with this much room cannot take so many processes; None if they can."""
    nodes = -(-processes // room)
    if processes % nodes:
        return f"do not divide evenly over {nodes} nodes"
    idle = whole and (room % processes if nodes == 1 else processes % room)
    return "would leave some of the node's slots idle" if idle else None


def process_problems(cells: Sequence[Cell], cluster: Cluster) -> list[Problem]:
    """The cells that the profile cannot give their processes, each at the setting that says how many.

    If it lacks the key without which no cell can have several, that is one problem, of the profile.
    """
    profile, several = cluster.profile, [cell.config for cell in cells if cell.config.processes > 1]
    on_gpus = bool(profile.gpus) or any(config.device == "cuda" for config in several)
    key, beside = ("gpus_per_node", "gpus") if on_gpus else ("processes_per_node", "executor")
    keys = ["`gpus: 1`"] * (on_gpus and not profile.gpus) + [f"`{key}`"] * (getattr(profile, key) is None)
    if several and keys and profile.executor == "slurm":
        most = max(config.processes for config in several)
        other = " in place of `processes_per_node`" if on_gpus and profile.processes_per_node else ""
        text = f"runs of up to {most} processes: set {' and '.join(keys)}{other}"
        return [Problem(cluster.document.mark((beside,)), text)]
    refusals = set[Problem]()
    for cell in cells:
        processes = cell.config.processes
        try:
            if processes > 1 and cell.config.device == "cuda" and not profile.gpus:
                raise UserError(f"{processes} processes need a GPU each, but `gpus` is 0: set it to 1")
            layout(profile, processes)
        except UserError as error:
            # At the newest of the settings that ask for several processes.
            axes = {f"parallel.{axis}" for axis, number in cell.config.parallel if number > 1}
            marks = [mark for dotted, mark in cell.marks.items() if dotted in axes]
            mark = marks[-1] if marks else cell.origin
            refusals.add(Problem(mark, f"profile {cluster.name}: {error}"))
    return sorted(refusals)


def refuse_processes(run: RunRecord, changes: Mapping[str, int], cluster: Cluster) -> None:
    """Raise UserError if a run cannot be restarted with these axes of `parallel`, and say what would do."""
    if "parallel" not in run.config.section.reads:
        raise UserError(f"run {run.run_id}: task {run.config.task} has no `parallel`")
    try:
        _restarted(run, changes, cluster.profile)
    except ValidationError as error:
        # What would do for its other settings is of no use: a restart keeps them.
        why, _, _ = in_plain_words(error.errors(include_url=False)[0]["msg"]).partition(": ")
        raise UserError(f"run {run.run_id}: {why}{_instead(run, changes, cluster.profile)}") from error


def _restarted(run: RunRecord, changes: Mapping[str, int], profile: Profile) -> Layout:
    """The layout of a run with these axes changed. Raises ValidationError if they cannot share it."""
    return layout(profile, run.on(run.config.parallel.on(changes)).config.processes)


def _instead(run: RunRecord, changes: Mapping[str, int], profile: Profile) -> str:
    """Values that would do, the nearest below and above that were tried, if one axis is changed."""
    if len(changes) != 1:
        return ""
    ((axis, value),) = changes.items()

    def fits(number: int) -> bool:
        try:
            return bool(_restarted(run, {axis: number}, profile))
        except (ValidationError, UserError):
            return False

    sides = (range(min(value - 1, _TRIED), 0, -1), range(value + 1, value + _TRIED // 8))
    nearest = [next(filter(fits, side), None) for side in sides]
    numbers = " or ".join(str(number) for number in nearest if number)
    return f": {numbers} would do for parallel.{axis}" if numbers else ""
