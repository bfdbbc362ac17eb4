"""Rank 0's part in a run of several processes: it gathers them, and ends the attempt when one ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread, current_thread
from typing import TYPE_CHECKING, Any

from model.measure.hostmemory import oom_kills
from model.record.config import RunConfig
from model.record.errors import AssayError, Interrupted, UserError
from model.record.folder import RunFolder
from model.record.outcome import Outcome
from model.record.records import RankRecord, RunRecord
from model.training.parallel.place import Place
from runner.job.ranks.follower import Follower
from runner.job.ranks.meeting import (
    HERE,
    PATIENCE_SECONDS,
    Meeting,
    NobodyCame,
    is_echo,
    join_world,
    listen,
    meeting_file,
    node_name,
    of_rank_0,
    publish,
    reachable_name,
    show_own_gpu,
)
from runner.job.ranks.others import Other, Others
from runner.job.ranks.standstill import Standstill, Whereabouts, describe, ranges, whereabouts
from runner.job.tasks import Progress
from runner.state.attempts import jobs_folder
from runner.state.endings import Ending

if TYPE_CHECKING:
    from model.training.parallel.world import World

ASK_SECONDS = 5.0  # between questions to the others about where they are
POLL_SECONDS = 0.2
OWN_SECONDS = 3.0  # for the main thread to notice a death itself, and end
ECHO_SECONDS = 10.0  # for the cause of an error to show, if another process may have caused it
LEAVE_SECONDS = 10.0  # for the others to end by themselves


class Lost(AssayError):
    """Another process of the run has ended, which ends the attempt.

    Attributes:
        ending: how it ended, with rank, node and cause.
    """

    def __init__(self, ending: Ending) -> None:
        self.ending = ending
        super().__init__(ending.reason)


def lead(
    folder: RunFolder,
    attempt: int,
    run: RunRecord,
    options: Sequence[str],
    slot: int | None,
    steps: Callable[[], int],
    lost: Callable[[Ending], None],
) -> Ranks:
    """Act as rank 0 of a run: listen for the other processes, and start them or tell Slurm's tasks where.

    Args:
        slot: as for `run_attempt`.
        steps, lost: `steps` and `conclude` of Ranks.
    """
    size = run.config.processes
    ranks = Ranks(size, attempt, HERE if slot is None else reachable_name(), steps, lost)
    if slot is None:
        for rank in range(1, size):  # before `show_own_gpu`, which would hide their GPUs
            follower = Follower(folder, Place(rank, size, rank), ranks.meeting, options)
            ranks.note_start(rank, follower.start())
    else:
        ranks.publish(meeting_file(jobs_folder(folder.path.parent), slot))
    show_own_gpu(run.config, 0 if slot is None else int(os.environ.get("SLURM_LOCALID", "0")))
    return ranks


def join_as_first(ranks: Ranks, note: Callable[..., None], progress: Progress, config: RunConfig) -> World:
    """Rank 0's side of the meeting: wait until all are ready, note where they are, and begin.

    Raises:
        Lost, NobodyCame: as `Ranks.wait_until_ready`.
        UserError: two processes share a GPU.
        RuntimeError: torch's, if they cannot reach each other.
    """
    records = [RankRecord(node=node_name(), gpu_uuid=progress.manifest.gpu_uuid)]
    records += [RankRecord(node=other.node, gpu_uuid=other.gpu_uuid) for other in ranks.wait_until_ready()]
    require_own_gpus([record.gpu_uuid for record in records])
    note(ranks=records)
    address, listening = ranks.begin(manifest=progress.manifest.model_dump(mode="json"))
    return join_world(Place(0, config.processes, 0, address), config, listening)


def require_own_gpus(uuids: Sequence[str | None]) -> None:
    """Raise UserError if two processes, whose GPUs these are by rank, share one."""
    own = [uuid for uuid in uuids if uuid]
    if shared := sorted({uuid for uuid in own if own.count(uuid) > 1}):
        ranks = [str(rank) for rank, uuid in enumerate(uuids) if uuid == shared[0]]
        raise UserError(
            f"ranks {', '.join(ranks)} share GPU {shared[0]}: give each node as many GPUs as it has tasks, "
            "with `gpus_per_node` in the profile"
        )


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
        # A cause, and an error that may be its echo, each with when it was seen.
        self._cause: tuple[Ending, float] | None = None
        self._echo: tuple[Ending, float] | None = None
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

    def note_start(self, rank: int, child: subprocess.Popen[bytes]) -> None:
        """Note a process that this one has started: it may end before it connects."""
        other = self._others.by_rank[rank]
        other.process, other.node = child, node_name()

    def wait_until_ready(self) -> list[Other]:
        """Wait until all are ready to begin.

        Raises:
            Lost: one has ended.
            NobodyCame: some did not come in time.
        """
        self._wait_until(lambda other: other.ready, PATIENCE_SECONDS)
        self._take_down_notice()
        return [*self._others.by_rank.values()]

    def begin(self, **facts: Any) -> tuple[str, socket.socket]:
        """Tell all to begin; returns HOST:PORT and socket at which torch's rank 0, this process, listens."""
        listening = listen(self.meeting.host)
        address = f"{self.meeting.host}:{listening.getsockname()[1]}"
        self._training = True
        self._others.send(say="go", address=address, **facts)
        return address, listening

    def wait_until_done(self) -> None:
        """Wait until all have done their part. Raises Lost."""
        self._wait_until(lambda other: other.done, None)
        self._training = False

    def continue_after_result(self) -> None:
        """Have all do what follows the run."""
        for other in self._others.by_rank.values():
            other.done = False
        self._training = True
        self._others.send(say="more")

    def pids(self) -> list[int]:
        """Pids of the processes that this one has started."""
        return [other.process.pid for other in self._others.by_rank.values() if other.process]

    def root_cause(self, ending: Ending, error: BaseException) -> Ending:
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
        return self._with_places(ending) if echo else of_rank_0(ending)

    def close(self) -> None:
        """Close the connections, which ends the other processes, and wait for those started here."""
        self._closed.set()
        self._take_down_notice()
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

    def _take_down_notice(self) -> None:
        if self._notice:
            self._notice.unlink(missing_ok=True)

    def _wait_until(self, reached: Callable[[Other], bool], patience: float | None) -> None:
        end = None if patience is None else time.monotonic() + patience
        with self._others.changed:
            while late := [rank for rank, other in self._others.by_rank.items() if not reached(other)]:
                if self._cause:
                    raise Lost(self._cause[0])
                if end is not None and time.monotonic() > end:
                    raise NobodyCame(f"ranks that did not start within {patience:g} s: {ranges(late)}")
                self._others.changed.wait(POLL_SECONDS)

    def _watch(self) -> None:
        before = time.monotonic()
        while not self._closed.wait(POLL_SECONDS):
            now = time.monotonic()
            if now - before > ASK_SECONDS:  # this process was stopped, perhaps with all others
                self._standstill.since += now - before
            before = now
            with self._others.changed:
                if now - self._asked > ASK_SECONDS:
                    self._asked = now
                    self._others.send(say="where")
                if self._cause is None:
                    self._look_for_cause(now)
                # The main thread has some time to notice a cause itself.
                ending = None
                if self._cause:
                    if now - self._cause[1] > OWN_SECONDS:
                        ending = self._cause[0]
                elif self._echo and now - self._echo[1] > ECHO_SECONDS + OWN_SECONDS:
                    ending = self._with_places(self._echo[0])
            if ending and not self._closed.is_set():
                self._conclude(ending)

    def _look_for_cause(self, now: float) -> None:
        """Look for an error that a process reports, a death, or a hang."""
        terminated = self._terminations.heard()
        for other in self._others.by_rank.values():
            if other.ending and other.echo:
                self._echo = self._echo or (other.ending, now)
                continue
            ending = other.ending
            if not ending and other.is_gone:
                ending = other.death(now - (other.gone or now), terminated, oom_kills() > self._kills)
            if ending:
                self._cause = ending, now
                return
        if not self._training:
            return
        if hang := self._standstill.reason(now, self._places(), self._nodes(), stopping=terminated):
            ending = Ending(Outcome.FAILED, hang)
            if terminated:
                ending = Ending(Outcome.CANCELLED, f"received SIGTERM; {hang}")
            self._cause = ending, now - OWN_SECONDS

    def _places(self) -> dict[int, Whereabouts | None]:
        others = {rank: other.now_at for rank, other in self._others.by_rank.items()}
        return {0: whereabouts(self._steps()), **others}

    def _nodes(self) -> dict[int, str]:
        return {0: node_name(), **{rank: other.node for rank, other in self._others.by_rank.items()}}

    def _with_places(self, ending: Ending) -> Ending:
        return replace(ending, reason=f"{ending.reason}; {describe(self._places(), self._nodes())}")


class Terminations:
    """Notices SIGTERM while the main thread is stuck: Python runs a handler only at its next instruction.

    Made and closed by the main thread, in a process that handles SIGTERM.
    """

    def __init__(self) -> None:
        self._heard = False
        self._ours, self._pythons = socket.socketpair()
        for end in (self._ours, self._pythons):
            end.setblocking(False)
        self._before = signal.set_wakeup_fd(self._pythons.fileno(), warn_on_full_buffer=False)

    def heard(self) -> bool:
        """Whether SIGTERM has arrived."""
        with suppress(BlockingIOError):
            while numbers := self._ours.recv(64):
                self._heard = self._heard or signal.SIGTERM in numbers
        return self._heard

    def close(self) -> None:
        """Stop listening."""
        signal.set_wakeup_fd(self._before)
        self._ours.close()
        self._pythons.close()
