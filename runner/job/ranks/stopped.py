"""What another process does when rank 0 has stopped: it records that, and ends rank 0."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

from model.record.errors import UserError
from model.record.folder import Attempt
from model.record.outcome import Outcome
from runner.job.ranks.leader import Leader, node
from runner.job.ranks.standstill import stands
from runner.job.ranks.start import STOPPED, Follower
from runner.job.ranks.where import Place
from runner.state import ledger, process
from runner.state.endings import Ending


def end_it(follower: Follower, leader: Leader, here: Place, seconds: float) -> None:
    """Record that rank 0 hangs, kill it if it is on this machine, and leave; otherwise srun ends it.

    Args:
        here: where this process is.
        seconds: how long rank 0 has been silent.
    """
    attempt = follower.folder.attempt(follower.meeting.attempt)
    if attempt.settled is None:
        ending = Ending(Outcome.FAILED, _reason(attempt, follower.place.rank, here, seconds))
        leader.ended(ending, echo=False, of_all=True)  # rank 0 reads it if it continues after all
        with suppress(UserError):  # the disk may be what has stopped it
            ledger.ended(follower.folder, attempt.number, ending)
    elif attempt.settled[0].may_come_back:  # it may wait to requeue its job
        os._exit(1)
    if attempt.manifest:
        process.terminate(attempt.manifest, by=signal.SIGKILL)
    os._exit(STOPPED)


def _reason(attempt: Attempt, rank: int, here: Place, seconds: float) -> str:
    said = attempt.manifest
    first = said and (said.ranks[0].node if said.ranks else said.host)
    words = stands({0: None, rank: here}, {0: first or "?", rank: node()})
    return f"hangs: nothing has moved for {seconds:.0f} s; {words}"
