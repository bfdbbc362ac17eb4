"""The other processes of a run as rank 0 sees them: which are there, and how each ended."""

from __future__ import annotations

import hmac
import json
import socket
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from threading import Condition, Thread
from typing import Any

from model.record.outcome import Outcome
from runner.job.ranks.meeting import Meeting, serve
from runner.job.ranks.where import Place
from runner.job.ranks.wire import Connection, Message, Vanished
from runner.state.endings import Ending, of_exit

HELLO_SECONDS = 10.0  # for a process that has connected to say which one it is
ANSWER_SECONDS = 15.0  # three questions long: after that, a process counts as not answering
DEATH_SECONDS = 6.0  # Slurm kills the other tasks within a second or two after one was killed


@dataclass
class Other:
    """One other process of the run.

    Attributes:
        task: the connection of the Slurm task on its node that has started it.
        process: the child process, if this process has started it.
        exit: its exit code, and whether the OOM killer was active, as its task reports.
        gone: when its connection ended, on the time.monotonic() clock; None while it is open.
        vanished: whether its host no longer answers.
        place: where it last said it is.
        heard: when it said so, on the same clock.
    """

    rank: int
    node: str = ""
    gpu_uuid: str | None = None
    rank_says: Connection | None = None
    task: Connection | None = None
    process: subprocess.Popen[bytes] | None = None
    exit: tuple[int, bool] | None = None
    ready: bool = False
    done: bool = False
    gone: float | None = None
    vanished: bool = False
    place: Place | None = None
    heard: float = 0.0
    ending: Ending | None = None
    echo: bool = False

    @property
    def is_gone(self) -> bool:
        """Whether it has ended. Everything that it said before has been noted by then."""
        if self.rank_says is not None:
            return self.gone is not None
        return self.exit is not None or (self.process is not None and self.process.poll() is not None)

    @property
    def now_at(self) -> Place | None:
        """Where it is; None if it has not answered recently."""
        return self.place if time.monotonic() - self.heard < ANSWER_SECONDS else None


class Others:
    """Listens for the other processes, and notes what they say.

    Attributes:
        changed: notified when anything is noted; hold it while reading the processes.
        by_rank: the processes, from rank 1.
    """

    def __init__(self, size: int, attempt: int, host: str) -> None:
        self.changed, self._closed = Condition(), False
        self.by_rank = {rank: Other(rank) for rank in range(1, size)}
        self._server = serve(host, backlog=2 * size)
        self.meeting = Meeting.at(attempt, host, self._server.getsockname()[1])
        Thread(target=self._accept, daemon=True).start()

    def say(self, **message: Any) -> None:
        """Send a message to all processes that are connected."""
        for other in self.by_rank.values():
            if other.rank_says:
                other.rank_says.say(**message)

    def close(self) -> None:
        """Stop listening and close all connections, which ends the processes."""
        with self.changed:
            self._closed = True
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for other in self.by_rank.values():
            for connection in (other.rank_says, other.task):
                if connection:
                    connection.close()

    def _accept(self) -> None:
        while True:
            try:
                channel, _ = self._server.accept()
            except OSError:  # closed
                return
            Thread(target=self._greet, args=(channel,), daemon=True).start()

    def _greet(self, channel: socket.socket) -> None:
        """Listen to a process of this run; close any other connection."""
        channel.settimeout(HELLO_SECONDS)
        with channel.makefile("rb", buffering=0) as stream:
            try:
                hello = json.loads(stream.readline(4096))
                known = hmac.compare_digest(str(hello["token"]), self.meeting.token)
                other = self.by_rank[hello["rank"]]
            except (OSError, ValueError, KeyError, TypeError):
                known = False
        if not known:
            channel.close()
            return
        connection = Connection(channel)
        with self.changed:
            if self._closed:
                connection.close()
                return
            other.node, other.heard = hello["node"], time.monotonic()
            if hello["kind"] == "task":
                other.task = connection
            else:
                other.rank_says = connection
            self.changed.notify_all()
        self._hear(other, connection)

    def _hear(self, other: Other, connection: Connection) -> None:
        vanished = False
        try:
            for message in connection.heard():
                with self.changed:
                    self._note(other, message)
                    self.changed.notify_all()
        except Vanished:
            vanished = True
        with self.changed:
            if connection is not other.task:
                other.gone = time.monotonic()
            other.vanished |= vanished
            self.changed.notify_all()

    @staticmethod
    def _note(other: Other, said: Message) -> None:
        kind = said.pop("say")
        if kind == "ready":
            other.ready, other.gpu_uuid = True, said["gpu_uuid"]
        elif kind == "at":
            other.place, other.heard = Place(**said), time.monotonic()
        elif kind == "done":
            other.done = True
        elif kind == "died":
            other.exit = said["code"], said["oom"]
        elif kind == "ended" and other.ending is None:
            where = "" if said["of_all"] else f"rank {other.rank} on {other.node}: "
            reason = f"{where}{said['reason']}"
            other.ending = Ending(Outcome(said["outcome"]), reason, said["requested_bytes"])
            other.echo = said["echo"]


def death(other: Other, waited: float, terminated: bool, oom_killed: bool) -> Ending | None:
    """How a process ended that is gone without a word; None while that is not known.

    Usually its Slurm task says how it ended, or Slurm ends all tasks because one was killed. If neither
    happens, its task is gone too.

    Args:
        waited: seconds since it was gone.
        terminated: whether this process has received SIGTERM since.
        oom_killed: whether the kernel's OOM killer has been active, as `oom_kills` counts.
    """
    where = f"rank {other.rank} on {other.node}"
    if other.vanished:
        return _lost(other, f"{where}: its node no longer answers")
    said = other.exit
    if other.process is not None and (code := other.process.poll()) is not None:
        said = code, oom_killed
    if said:
        found = of_exit(*said)
        return Ending(found.outcome, f"{where}: {found.reason}")
    if terminated:
        return Ending(Outcome.FAILED, f"{where} was killed, and its Slurm task with it")
    if waited < DEATH_SECONDS:
        return None
    if other.process is not None:
        return Ending(Outcome.FAILED, f"{where} closed its connection but did not exit")
    return _lost(other, f"{where}: both it and its Slurm task are gone")


def _lost(other: Other, reason: str) -> Ending:
    return Ending(Outcome.NODE_FAILED, reason, failed_nodes=(other.node,))
