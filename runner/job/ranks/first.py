"""Rank 0's part in a run of several processes: it gathers them, and ends the attempt when one ends."""

from __future__ import annotations

import re
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread, current_thread
from typing import Any

from model.measure.hostmemory import oom_kills
from model.record.errors import AssayError, Interrupted, OfAnotherProcess
from model.record.outcome import Outcome
from runner.job.ranks.leader import node
from runner.job.ranks.meeting import PATIENCE_SECONDS, Meeting, NobodyCame, publish, serve
from runner.job.ranks.others import Other, Others, death
from runner.job.ranks.standstill import Standstill, stands
from runner.job.ranks.terminations import Terminations
from runner.job.ranks.where import Place, place
from runner.state.endings import Ending

ASK_SECONDS = 5.0  # between questions to the others about where they are
POLL_SECONDS = 0.2
OWN_SECONDS = 3.0  # for the main thread to notice a death itself, and end
ECHO_SECONDS = 10.0  # for the cause of an error to show, if another process may have caused it
LEAVE_SECONDS = 10.0  # for the others to end by themselves
# What torch.distributed says when a partner is gone: TCP, gloo, NCCL, its store, and their time-outs.
_ECHO = re.compile(
    r"connection (was )?(closed|reset|refused|aborted)|broken pipe|recvValue failed|nccl|gloo|"
    r"timed out|timeout|Dist(Network|Store|Backend)?Error",
    re.IGNORECASE,
)


class Lost(AssayError):
    """Another process of the run has ended, which ends the attempt.

    Attributes:
        ending: how it ended, with rank, node and cause.
    """

    def __init__(self, ending: Ending) -> None:
        self.ending = ending
        super().__init__(ending.reason)


def is_echo(error: BaseException) -> bool:
    """Whether it is another process's error, or that one's death may be what raised it here."""
    if isinstance(error, OfAnotherProcess):
        return True
    return isinstance(error, RuntimeError) and bool(_ECHO.search(f"{type(error).__name__}: {error}"))


class Ranks:
    """The run's other processes. Made and closed by the main thread.

    Args:
        size: number of processes, this one included.
        host: the name by which the others reach this machine.
        steps: returns the number of steps that this process has done.
        conclude: records how the attempt ended, and ends this process. The watching thread calls it
            repeatedly if the main thread does not end by itself: it may be stuck in a collective.
    """

    def __init__(
        self,
        size: int,
        attempt: int,
        host: str,
        steps: Callable[[], int],
        conclude: Callable[[Ending], None],
    ) -> None:
        self._others, self._steps, self._conclude = Others(size, attempt, host), steps, conclude
        self._standstill, self._training = Standstill(), False
        self._closed, self._terminations = Event(), Terminations()
        self._kills, self._asked = oom_kills(), 0.0
        self._notice: Path | None = None
        self._cause: tuple[Ending, float] | None = None
        self._echoed: tuple[Ending, float] | None = None
        self._watching = Thread(target=self._watch, daemon=True)
        self._watching.start()

    @property
    def meeting(self) -> Meeting:
        """Where this process listens for the others."""
        return self._others.meeting

    def publish(self, notice: Path) -> None:
        """Tell processes that it does not start where this one listens; the file goes once all are there."""
        publish(notice, self.meeting)
        self._notice = notice

    def started(self, rank: int, child: subprocess.Popen[bytes]) -> None:
        """Note a process that this one has started: it may end before it connects."""
        other = self._others.by_rank[rank]
        other.process, other.node = child, node()

    def gathered(self) -> list[Other]:
        """Wait until all are ready to begin.

        Raises:
            Lost: one has ended.
            NobodyCame: some did not come in time.
        """
        self._until(lambda other: other.ready, PATIENCE_SECONDS)
        self._take_down()
        return [*self._others.by_rank.values()]

    def go(self, **facts: Any) -> tuple[str, socket.socket]:
        """Tell all to begin; returns HOST:PORT and socket at which torch's rank 0, this process, listens."""
        listening = serve(self.meeting.host)
        address = f"{self.meeting.host}:{listening.getsockname()[1]}"
        self._training = True
        self._others.say(say="go", address=address, **facts)
        return address, listening

    def finished(self) -> None:
        """Wait until all have done their part. Raises Lost."""
        self._until(lambda other: other.done, None)
        self._training = False

    def more(self) -> None:
        """Have all do what follows the run."""
        for other in self._others.by_rank.values():
            other.done = False
        self._training = True
        self._others.say(say="more")

    def pids(self) -> list[int]:
        """Of the processes that this one has started."""
        return [other.process.pid for other in self._others.by_rank.values() if other.process]

    def true_of(self, ending: Ending, error: BaseException) -> Ending:
        """How the attempt ended, given how this process ended; another process may have caused that."""
        if isinstance(error, Lost):
            return error.ending
        if isinstance(error, Interrupted) or ending.outcome is not Outcome.FAILED:
            return of_rank_0(ending)
        echo, begun = is_echo(error), time.monotonic()
        patience = ECHO_SECONDS if echo else OWN_SECONDS
        while self._cause is None and time.monotonic() < begun + patience:
            time.sleep(POLL_SECONDS)
        if self._cause:
            return self._cause[0]
        return replace(ending, reason=f"{ending.reason}; {self._stands()}") if echo else of_rank_0(ending)

    def close(self) -> None:
        """Close the connections, which ends the other processes, and wait for those started here."""
        self._closed.set()
        self._take_down()
        if current_thread() is not self._watching:
            self._watching.join()
            self._terminations.close()
        self._others.close()
        until = time.monotonic() + LEAVE_SECONDS
        for child in (other.process for other in self._others.by_rank.values()):
            if child is not None:
                with suppress(subprocess.TimeoutExpired):
                    child.wait(max(0.0, until - time.monotonic()))
                child.kill()
                child.wait()

    def _take_down(self) -> None:
        if self._notice:
            self._notice.unlink(missing_ok=True)

    def _until(self, reached: Callable[[Other], bool], patience: float | None) -> None:
        end = None if patience is None else time.monotonic() + patience
        with self._others.changed:
            while late := [rank for rank, other in self._others.by_rank.items() if not reached(other)]:
                if self._cause:
                    raise Lost(self._cause[0])
                if end is not None and time.monotonic() > end:
                    ranks = ", ".join(map(str, late))
                    raise NobodyCame(f"ranks that did not start within {patience:g} s: {ranks}")
                self._others.changed.wait(POLL_SECONDS)

    def _watch(self) -> None:
        before = time.monotonic()
        while not self._closed.wait(POLL_SECONDS):
            now = time.monotonic()
            if now - before > ASK_SECONDS:  # this process was stopped, perhaps with all others
                self._standstill.since += now - before
            before = now
            with self._others.changed:
                self._ask(now)
                ending = self._ending(now)
            if ending and not self._closed.is_set():
                self._conclude(ending)

    def _ask(self, now: float) -> None:
        if now - self._asked > ASK_SECONDS:
            self._asked = now
            self._others.say(say="where")

    def _ending(self, now: float) -> Ending | None:
        """How the attempt has ended; None if it has not, or the main thread still has time to notice."""
        if self._cause is None:
            self._look(now)
        if self._cause:
            ending, since = self._cause
            return ending if now - since > OWN_SECONDS else None
        if self._echoed and now - self._echoed[1] > ECHO_SECONDS + OWN_SECONDS:
            return replace(self._echoed[0], reason=f"{self._echoed[0].reason}; {self._stands()}")
        return None

    def _look(self, now: float) -> None:
        """Look for a cause: an error that a process reports, a death, or a hang."""
        for other in self._others.by_rank.values():
            if other.ending and other.echo:
                self._echoed = self._echoed or (other.ending, now)
            elif other.ending:
                self._cause = other.ending, now
                return
            elif other.is_gone and (ending := self._death(other, now)):
                self._cause = ending, now
                return
        if self._training and (ending := self._hang(now)):
            self._cause = ending, now - OWN_SECONDS

    def _death(self, other: Other, now: float) -> Ending | None:
        oom = oom_kills() > self._kills
        return death(other, now - (other.gone or now), self._terminations.heard(), oom)

    def _hang(self, now: float) -> Ending | None:
        asked = self._terminations.heard()
        hang = self._standstill.reason(now, self._places(), self._nodes(), stopping=asked)
        if hang is None:
            return None
        return (
            Ending(Outcome.CANCELLED, f"received SIGTERM; {hang}") if asked else Ending(Outcome.FAILED, hang)
        )

    def _places(self) -> dict[int, Place | None]:
        return {
            0: place(self._steps()),
            **{rank: other.now_at for rank, other in self._others.by_rank.items()},
        }

    def _nodes(self) -> dict[int, str]:
        return {0: node(), **{rank: other.node for rank, other in self._others.by_rank.items()}}

    def _stands(self) -> str:
        return stands(self._places(), self._nodes())


def of_rank_0(ending: Ending) -> Ending:
    """The ending, with this process's rank and node if it concerns only this process."""
    if not ending.outcome.of_one_process:
        return ending
    return replace(ending, reason=f"rank 0 on {node()}: {ending.reason}")
