"""How the processes of a run are spread over nodes, and which numbers of them a profile cannot give. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from model.record.errors import UserError
from runner.inputs.cells import Cell
from runner.inputs.document import Mark, Problem
from runner.inputs.profile import Cluster, Profile

HERE = 8  # most processes of a run without GPUs on this machine, if its profile does not say


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
        return _here(processes, key, room if profile.gpus else room or HERE)
    if room is None:
        raise UserError(f"{processes} processes need a profile that sets `{key}`: add it")
    nodes, whole = -(-processes // room), bool(profile.gpus and profile.slurm and profile.slurm.exclusive)
    if unfit := _unfit(processes, room, whole):
        text = f"{processes} processes {unfit}, since `{key}` is {room}"
        raise UserError(f"{text}: use {_instead(processes, room, whole)}")
    sharing = min(room // processes, profile.max_parallel) if whole and nodes == 1 else 1
    return Layout(processes, nodes, sharing)


def _here(processes: int, key: str, room: int | None) -> Layout:
    """The layout on this machine. If the profile names no number of GPUs, the queue counts them later."""
    if room is not None and processes > room:
        text = f"{processes} processes are too many for this machine, since `{key}` is {room}"
        raise UserError(f"{text}: use {room} or fewer")
    return Layout(processes, 1, 1)


def _unfit(processes: int, room: int, whole: bool) -> str | None:
    """Why nodes with this much room cannot take so many processes; None if they can."""
    nodes = -(-processes // room)
    if processes % nodes:
        return f"do not divide evenly over {nodes} nodes"
    idle = whole and (room % processes if nodes == 1 else processes % room)
    return "would leave some of the node's slots idle" if idle else None


def _instead(processes: int, room: int, whole: bool) -> str:
    """The nearest numbers of processes that nodes can take: always 1, and each multiple of their room."""
    sides = (range(processes - 1, 0, -1), range(processes + 1, processes + room + 1))
    found = (next((each for each in side if not _unfit(each, room, whole)), None) for side in sides)
    return " or ".join(str(number) for number in found if number)


def refused(cells: Sequence[Cell], cluster: Cluster) -> list[Problem]:
    """The cells that the profile cannot give their processes, each at the setting that says how many.

    If it lacks the key without which no cell can have several, that is one problem, of the profile.
    """
    return _lacking(cells, cluster) or sorted(
        {problem for cell in cells if (problem := _refused(cell, cluster))}
    )


def _lacking(cells: Sequence[Cell], cluster: Cluster) -> list[Problem]:
    profile, several = cluster.profile, [cell.config for cell in cells if cell.config.processes > 1]
    on_gpus = bool(profile.gpus) or any(config.device == "cuda" for config in several)
    key, beside = ("gpus_per_node", "gpus") if on_gpus else ("processes_per_node", "executor")
    keys = ["`gpus: 1`"] * (on_gpus and not profile.gpus) + [f"`{key}`"] * (getattr(profile, key) is None)
    if not several or profile.executor == "local" or not keys:
        return []
    most = max(config.processes for config in several)
    other = " in place of `processes_per_node`" if on_gpus and profile.processes_per_node else ""
    text = f"runs of up to {most} processes: set {' and '.join(keys)}{other}"
    return [Problem(cluster.document.mark((beside,)), text)]


def _refused(cell: Cell, cluster: Cluster) -> Problem | None:
    processes, profile = cell.config.processes, cluster.profile
    try:
        if processes > 1 and cell.config.device == "cuda" and not profile.gpus:
            raise UserError(f"{processes} processes need a GPU each, but `gpus` is 0: set it to 1")
        layout(profile, processes)
    except UserError as error:
        return Problem(_place(cell), f"profile {cluster.name}: {error}")
    return None


def _place(cell: Cell) -> Mark:
    """Where the newest of the settings that ask for several processes was set."""
    several = {f"parallel.{axis}" for axis, number in cell.config.parallel if number > 1}
    marks = [mark for dotted, mark in cell.marks.items() if dotted in several]
    return marks[-1] if marks else cell.origin
