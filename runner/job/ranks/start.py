"""Starts the processes of a run other than rank 0, and says how they ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from model.measure.hostmemory import oom_kills
from model.record.config import RunConfig
from model.record.files import no_link
from model.record.folder import RunFolder
from model.record.records import RunRecord
from model.training.parallel.place import Place
from runner.job.ranks.first import Ranks
from runner.job.ranks.leader import Leader, node
from runner.job.ranks.meeting import Meeting
from runner.state import gpus

STOPPED = 75  # exit code of a process that found rank 0 stopped; EX_TEMPFAIL in sysexits.h


@dataclass(frozen=True)
class Follower:
    """A process of a run other than rank 0.

    Attributes:
        folder: of the run.
        options: Python options that make a process import the run's code.
    """

    folder: RunFolder
    place: Place
    meeting: Meeting
    options: Sequence[str]

    @property
    def planned(self) -> RunRecord:
        """The run as the attempt does it. Raises Unreadable."""
        return self.folder.attempt(self.meeting.attempt).planned

    def start(self) -> subprocess.Popen[bytes]:
        """Start it. It ends with this process, and writes to its node's log.

        The token goes through a pipe, because other users can see a command line.
        """
        path = self.folder.attempt(self.meeting.attempt).path
        module = ["-m", "runner.job.ranks.follower", str(os.getpid())]
        with open(path / f"ranks-{node()}.log", "ab", opener=no_link) as log:
            child = subprocess.Popen(
                [sys.executable, *self.options, *module],
                cwd=path,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
            )
        assert child.stdin
        with child.stdin as pipe:
            pipe.write(self.as_json().encode())
        return child

    def as_json(self) -> str:
        """What the process needs to know."""
        meeting = self.meeting.model_dump()
        return json.dumps([os.fspath(self.folder), vars(self.place), meeting, list(self.options)])

    @classmethod
    def from_json(cls, text: str) -> Follower:
        """What `as_json` said."""
        folder, place, meeting, options = json.loads(text)
        return cls(RunFolder(folder), Place(**place), Meeting(**meeting), options)


def start_here(ranks: Ranks, size: int, folder: RunFolder, options: Sequence[str]) -> None:
    """Start the other processes of a run on this machine."""
    for rank in range(1, size):
        place = Place(rank, size, rank)
        ranks.started(rank, Follower(folder, place, ranks.meeting, options).start())


def stand_by(follower: Follower) -> None:
    """Start a process for this Slurm task, tell rank 0 how it ends, and end with rank 0.

    The task ends as a success, because rank 0 records how the run ended, and srun kills all tasks if one
    fails. If rank 0 has stopped it ends as a failure, so that srun kills rank 0.
    """
    for number in (signal.SIGTERM, signal.SIGUSR2):  # meant for the process, which may save first
        signal.signal(number, lambda _number, _frame: None)
    leave, kills = partial(os._exit, 0), oom_kills()
    leader = Leader(follower.meeting, follower.place.rank, "task", leave=leave)
    code = follower.start().wait()
    if code == STOPPED:
        os._exit(code)
    if code:
        leader.died(code, oom_kills() > kills)
    leader.outlast()


def have_own_gpu(config: RunConfig, local_rank: int) -> None:
    """Show only one GPU to this process and to those that it starts, such as a trial's.

    Call this before torch is imported: CUDA and HIP look only once.
    """
    if config.device == "cuda":
        os.environ.update(own_gpu(local_rank, gpus.visible(os.environ), gpus.variable(os.environ)))


def own_gpu(local_rank: int, devices: Sequence[str], variable: str = gpus.CUDA) -> dict[str, str]:
    """The variable that shows a process its own GPU.

    Args:
        devices: the GPUs that all processes of its node see. If there is one, Slurm has assigned it. If there
            are too few, two processes get the same, which `hold_gpu` refuses.
    """
    if len(devices) <= 1:
        return {}
    return {variable: devices[local_rank % len(devices)]}
