"""Rank 0, as the other processes of its run see it."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import asdict
from queue import Queue
from threading import Event, Thread
from typing import Literal

from model.record.stderr import say
from runner.job.ranks.meeting import Meeting, NobodyCame
from runner.job.ranks.standstill import TURN_SECONDS, Silence
from runner.job.ranks.where import Place, place
from runner.job.ranks.wire import Connection, Message
from runner.state.endings import Ending

CONNECT_SECONDS = 60.0
Kind = Literal["rank", "task"]  # a process of the run, or the Slurm task that has started it


class Leader:
    """The connection to rank 0. This process ends when it closes.

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
        silent: Callable[[Leader, Place, float], None] | None = None,
    ) -> None:
        self._orders, self._steps, self._leave = Queue[Message](), steps, leave
        self._silence, self._gone = Silence(), Event()
        try:
            channel = socket.create_connection((meeting.host, meeting.port), CONNECT_SECONDS)
        except OSError as error:
            where = f"{meeting.host}:{meeting.port}"
            raise NobodyCame(f"rank {rank} on {node()} cannot reach rank 0 at {where}: {error}") from error
        self._connection = Connection(channel)
        self._connection.say(say="hello", token=meeting.token, rank=rank, kind=kind, node=node())
        self._listening = Thread(target=self._listen, daemon=True)
        self._listening.start()
        if silent:
            Thread(target=self._watch, args=(silent,), daemon=True).start()

    def ready(self, gpu_uuid: str | None) -> None:
        """Tell rank 0 that this process can begin, and on which GPU."""
        self._connection.say(say="ready", gpu_uuid=gpu_uuid)

    def order(self, patience_seconds: float | None = None) -> Message:
        """Wait for rank 0's next order."""
        return self._orders.get(timeout=patience_seconds)

    def done(self) -> None:
        """Tell rank 0 that this process has done its part, or was stopped like all others."""
        self._connection.say(say="done")

    def ended(self, ending: Ending, echo: bool, of_all: bool = False) -> None:
        """Tell rank 0 that this process has failed.

        Args:
            echo: whether another process may have caused it.
            of_all: whether the whole run has failed, not this process alone.
        """
        said = {
            "reason": ending.reason,
            "requested_bytes": ending.requested_bytes,
            "echo": echo,
            "of_all": of_all,
        }
        self._connection.say(say="ended", outcome=ending.outcome.value, **said)

    def died(self, code: int, oom: bool) -> None:
        """Tell rank 0 how the process ended that this task has started."""
        self._connection.say(say="died", code=code, oom=oom)

    def outlast(self) -> None:
        """Wait until rank 0 is gone."""
        self._listening.join()

    def _listen(self) -> None:
        try:
            for message in self._connection.heard():
                self._silence.heard = True
                if message["say"] == "where":
                    self._connection.say(say="at", **asdict(place(self._steps())))
                else:
                    self._silence.begun = True
                    self._orders.put(message)
        except OSError as error:
            say(f"rank 0 no longer answers: {error}")
        self._gone.set()
        self._leave()

    def _watch(self, silent: Callable[[Leader, Place, float], None]) -> None:
        while not self._gone.wait(TURN_SECONDS):
            if self._silence.turn(here := place(self._steps())):
                silent(self, here, self._silence.seconds)


def node() -> str:
    """The name of this process's node."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()
