"""The other processes of a run as rank 0 sees them: which are there, and how each ended."""

from __future__ import annotations

import hmac
import json
import socket
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from threading import Condition, Thread
from typing import Any

from model.record.outcome import Outcome
from runner.job.ranks.meeting import Connection, Meeting, Message, Vanished, listen
from runner.job.ranks.standstill import Whereabouts
from runner.state.endings import Ending, ending_of_exit

HELLO_SECONDS = 10.0  # for a process that has connected to say which one it is
ANSWER_SECONDS = 15.0  # three questions long: after that, a process counts as not answering
DEATH_SECONDS = 6.0  # Slurm kills the other tasks within a second or two after one was killed


@dataclass
class Other:
    """One other process of the run.

    Attributes:
        connection: to the process itself.
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
    connection: Connection | None = None
    task: Connection | None = None
    process: subprocess.Popen[bytes] | None = None
    exit: tuple[int, bool] | None = None
    ready: bool = False
    done: bool = False
    gone: float | None = None
    vanished: bool = False
    place: Whereabouts | None = None
    heard: float = 0.0
    ending: Ending | None = None
    echo: bool = False

    @property
    def is_gone(self) -> bool:
        """Whether it has ended. Everything that it said before has been noted by then."""
        if self.connection is not None:
            return self.gone is not None
        return self.exit is not None or (self.process is not None and self.process.poll() is not None)

    @property
    def now_at(self) -> Whereabouts | None:
        """Where it is; None if it has not answered recently."""
        return self.place if time.monotonic() - self.heard < ANSWER_SECONDS else None

    def note(self, message: Message) -> None:
        """Note what the process, or its Slurm task, has said."""
        kind = message.pop("say")
        if kind == "ready":
            self.ready, self.gpu_uuid = True, message["gpu_uuid"]
        elif kind == "at":
            self.place, self.heard = Whereabouts(**message), time.monotonic()
        elif kind == "done":
            self.done = True
        elif kind == "died":
            self.exit = message["code"], message["oom"]
        elif kind == "ended" and self.ending is None:
            where = "" if message["of_all"] else f"rank {self.rank} on {self.node}: "
            reason = f"{where}{message['reason']}"
            self.ending = Ending(Outcome(message["outcome"]), reason, message["requested_bytes"])
            self.echo = message["echo"]

    def death(self, waited: float, terminated: bool, oom_killed: bool) -> Ending | None:
        """How it ended if it is gone without a word; None while that is not known.

        Usually its Slurm task says how it ended, or Slurm ends all tasks because one was killed. If neither
        happens, its task is gone too.

        Args:
            waited: seconds since it was gone.
            terminated: whether this process has received SIGTERM since.
            oom_killed: whether the kernel's OOM killer has been active, as `oom_kills` counts.
        """
        where = f"rank {self.rank} on {self.node}"
        node_failed = Ending(Outcome.NODE_FAILED, failed_nodes=(self.node,))
        if self.vanished:
            return replace(node_failed, reason=f"{where}: its node no longer answers")
        exit_, process = self.exit, self.process
        if process is not None and (code := process.poll()) is not None:
            exit_ = code, oom_killed
        if exit_:
            ending = ending_of_exit(*exit_)
            return Ending(ending.outcome, f"{where}: {ending.reason}")
        if terminated:
            return Ending(Outcome.FAILED, f"{where} was killed, and its Slurm task with it")
        if waited < DEATH_SECONDS:
            return None
        if process is not None:
            return Ending(Outcome.FAILED, f"{where} closed its connection but did not exit")
        return replace(node_failed, reason=f"{where}: both it and its Slurm task are gone")


class Others:
    """Listens for the other processes, and notes what they say.

    Attributes:
        changed: notified when anything is noted; hold it while reading the processes.
        by_rank: the processes, from rank 1.
    """

    def __init__(self, size: int, attempt: int, host: str) -> None:
        self.changed, self._closed = Condition(), False
        self.by_rank = {rank: Other(rank) for rank in range(1, size)}
        self._server = listen(host, backlog=2 * size)
        self.meeting = Meeting.at(attempt, host, self._server.getsockname()[1])
        Thread(target=self._accept, daemon=True).start()

    def send(self, **message: Any) -> None:
        """Send a message to all processes that are connected."""
        for other in self.by_rank.values():
            if other.connection:
                other.connection.send(**message)

    def close(self) -> None:
        """Stop listening and close all connections, which ends the processes."""
        with self.changed:
            self._closed = True
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for other in self.by_rank.values():
            for connection in (other.connection, other.task):
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
        """Note what a process of this run says until its connection ends; close any other connection."""
        channel.settimeout(HELLO_SECONDS)
        with channel.makefile("rb", buffering=0) as stream:
            try:
                hello = json.loads(stream.readline(4096))
                is_ours = hmac.compare_digest(str(hello["token"]), self.meeting.token)
                other = self.by_rank[hello["rank"]]
            except (OSError, ValueError, KeyError, TypeError):
                is_ours = False
        if not is_ours:
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
                other.connection = connection
            self.changed.notify_all()
        vanished = False
        try:
            for message in connection.messages():
                with self.changed:
                    other.note(message)
                    self.changed.notify_all()
        except Vanished:
            vanished = True
        with self.changed:
            if connection is not other.task:
                other.gone = time.monotonic()
            other.vanished |= vanished
            self.changed.notify_all()
