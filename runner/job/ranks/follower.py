"""`python -m runner.job.ranks.follower PARENT_PID`: a process other than rank 0, from its start to its end.

It reads its orders on standard input (`Follower.as_json`), records nothing, and ends when rank 0 does.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from queue import Queue
from threading import Event, Thread
from typing import TYPE_CHECKING, Literal

from model.measure import machine
from model.measure.hostmemory import oom_kills
from model.record.config import RunConfig
from model.record.errors import Interrupted, UserError
from model.record.files import no_link
from model.record.folder import RunFolder
from model.record.outcome import Outcome
from model.record.records import Manifest, RunRecord
from model.record.units import say
from model.training.parallel.place import Place
from runner.job.child import QuickExit, die_with
from runner.job.manifest import first_manifest
from runner.job.ranks.meeting import (
    Connection,
    Meeting,
    Message,
    NobodyCame,
    is_echo,
    join_world,
    node_name,
    show_own_gpu,
)
from runner.job.ranks.standstill import TURN_SECONDS, Silence, Whereabouts, describe, whereabouts
from runner.job.stop import Stop
from runner.job.tasks import Progress, TaskContext, memory_limit, prepare, unchanged
from runner.state import ledger, process
from runner.state.endings import Ending, ending_of_exception

if TYPE_CHECKING:
    from model.training.parallel.world import World

CONNECT_SECONDS = 60.0
STOPPED = 75  # exit code of a process that found rank 0 stopped; EX_TEMPFAIL in sysexits.h
Kind = Literal["rank", "task"]  # a process of the run, or the Slurm task that has started it


@dataclass(frozen=True)
class Follower:
    """A process of a run other than rank 0, as whoever starts it describes it.

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
        with open(path / f"ranks-{node_name()}.log", "ab", opener=no_link) as log:
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
        """Describe the process as its orders, which `from_json` reads."""
        meeting = self.meeting.model_dump()
        return json.dumps([os.fspath(self.folder), vars(self.place), meeting, list(self.options)])

    @classmethod
    def from_json(cls, text: str) -> Follower:
        """The process that `as_json` described."""
        folder, place, meeting, options = json.loads(text)
        return cls(RunFolder(folder), Place(**place), Meeting(**meeting), options)


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
        leader.report_death(code, oom_kills() > kills)
    leader.outlast()


def main() -> None:
    """Do this process's part of the run, then follow rank 0's orders until it ends."""
    die_with(int(sys.argv[1]))
    leaving = QuickExit()
    follower = Follower.from_json(sys.stdin.read())
    stop = Stop(None)  # rank 0 knows the time limit
    stop.listen()
    silent = partial(end_rank_0, follower)
    leader = Leader(follower.meeting, follower.place.rank, steps=lambda: stop.steps, silent=silent)
    run, place, gpu = follower.planned, follower.place, None
    config = run.config
    os.environ.update(machine.thread_limits(run.cpus))  # where rank 0 has not set them

    def failed(ending: Ending, echo: bool) -> None:
        leader.report_ending(ending, echo)
        os._exit(1)

    limit = memory_limit(run)
    try:
        limit.watch(lambda reason: failed(Ending(Outcome.OOM_HOST, reason), echo=False))
        source = run.source and unchanged(run, run.source)
        show_own_gpu(config, place.local_rank)
        task = prepare(config)
        limit.hold()
        uuid = machine.device(config.device)[1]
        manifest = first_manifest(run.run_id, follower.meeting.attempt)
        progress = Progress(manifest.model_copy(update={"gpu_uuid": uuid}))
        gpu = progress.gpu = process.hold_gpu(uuid)
        meet = partial(join_as_follower, leader, place, progress, config)
        options = follower.options
        context = TaskContext(run, follower.folder, progress, stop, options, source, meet, records=False)
        afterwards = task.run(context)
        leader.report_done()
        leader.next_order()
        if afterwards:
            afterwards()
    except Interrupted:  # all processes were, and rank 0 records it
        pass
    except BaseException as error:
        ending = ending_of_exception(error, config.device, limit)
        limit.release()
        say(traceback.format_exc().rstrip())
        failed(ending, is_echo(error))
    leader.report_done()
    leaving.done = True
    if gpu:  # held until here: what follows the result is measured on it, too
        gpu.close()
    leader.outlast()


def join_as_follower(leader: Leader, place: Place, progress: Progress, config: RunConfig) -> World:
    """Another process's side of the meeting: say that it is ready, and wait for rank 0."""
    leader.report_ready(progress.manifest.gpu_uuid)
    go = leader.next_order()
    progress.manifest = Manifest.model_validate(go["manifest"])
    return join_world(Place(place.rank, place.size, place.local_rank, go["address"]), config)


class Leader:
    """Rank 0, as another process of its run sees it. This process ends when the connection closes.

    Args:
        rank: of the process that connects, or whose Slurm task connects.
        steps: returns the number of steps that this process has done.
        leave: called by the listening thread when rank 0 is gone.
        silent: called repeatedly by the watching thread while rank 0 is silent and this process makes no
            progress, with the place where it is and the seconds since.
    """

    def __init__(
        self,
        meeting: Meeting,
        rank: int,
        kind: Kind = "rank",
        steps: Callable[[], int] = lambda: 0,
        leave: Callable[[], None] = lambda: os._exit(1),
        silent: Callable[[Leader, Whereabouts, float], None] | None = None,
    ) -> None:
        self._orders, self._steps, self._leave = Queue[Message](), steps, leave
        self._silence, self._gone = Silence(), Event()
        try:
            channel = socket.create_connection((meeting.host, meeting.port), CONNECT_SECONDS)
        except OSError as error:
            where = f"{meeting.host}:{meeting.port}"
            raise NobodyCame(
                f"rank {rank} on {node_name()} cannot reach rank 0 at {where}: {error}"
            ) from error
        self._connection = Connection(channel)
        self._connection.send(say="hello", token=meeting.token, rank=rank, kind=kind, node=node_name())
        self._listening = Thread(target=self._listen, daemon=True)
        self._listening.start()
        if silent:
            Thread(target=self._watch, args=(silent,), daemon=True).start()

    def report_ready(self, gpu_uuid: str | None) -> None:
        """Tell rank 0 that this process can begin, and on which GPU."""
        self._connection.send(say="ready", gpu_uuid=gpu_uuid)

    def next_order(self, patience_seconds: float | None = None) -> Message:
        """Wait for rank 0's next order."""
        return self._orders.get(timeout=patience_seconds)

    def report_done(self) -> None:
        """Tell rank 0 that this process has done its part, or was stopped like all others."""
        self._connection.send(say="done")

    def report_ending(self, ending: Ending, echo: bool, of_all: bool = False) -> None:
        """Tell rank 0 that this process has failed.

        Args:
            echo: whether another process may have caused it.
            of_all: whether the whole run has failed, not this process alone.
        """
        self._connection.send(
            say="ended",
            outcome=ending.outcome.value,
            reason=ending.reason,
            requested_bytes=ending.requested_bytes,
            echo=echo,
            of_all=of_all,
        )

    def report_death(self, code: int, oom: bool) -> None:
        """Tell rank 0 how the process ended that this task has started."""
        self._connection.send(say="died", code=code, oom=oom)

    def outlast(self) -> None:
        """Wait until rank 0 is gone."""
        self._listening.join()

    def _listen(self) -> None:
        try:
            for message in self._connection.messages():
                self._silence.heard = True
                if message["say"] == "where":
                    self._connection.send(say="at", **asdict(whereabouts(self._steps())))
                else:
                    self._silence.begun = True
                    self._orders.put(message)
        except OSError as error:
            say(f"rank 0 no longer answers: {error}")
        self._gone.set()
        self._leave()

    def _watch(self, silent: Callable[[Leader, Whereabouts, float], None]) -> None:
        while not self._gone.wait(TURN_SECONDS):
            if self._silence.turn(here := whereabouts(self._steps())):
                silent(self, here, self._silence.seconds)


def end_rank_0(follower: Follower, leader: Leader, here: Whereabouts, seconds: float) -> None:
    """Record that rank 0 hangs, kill it if it is on this machine, and leave; otherwise srun ends it.

    Args:
        here: where this process is.
        seconds: how long rank 0 has been silent.
    """
    attempt, rank = follower.folder.attempt(follower.meeting.attempt), follower.place.rank
    if attempt.settled is None:
        manifest = attempt.manifest
        node_of_0 = manifest and (manifest.ranks[0].node if manifest.ranks else manifest.host)
        places = describe({0: None, rank: here}, {0: node_of_0 or "?", rank: node_name()})
        ending = Ending(Outcome.FAILED, f"hangs: nothing has moved for {seconds:.0f} s; {places}")
        leader.report_ending(ending, echo=False, of_all=True)  # rank 0 reads it if it continues after all
        with suppress(UserError):  # the disk may be what has stopped it
            ledger.record_end(follower.folder, attempt.number, ending)
    elif attempt.settled[0].may_come_back:  # it may wait to requeue its job
        os._exit(1)
    if attempt.manifest:
        process.terminate(attempt.manifest, by=signal.SIGKILL)
    os._exit(STOPPED)


if __name__ == "__main__":
    main()
