"""What another process does where rank 0 has stopped, and can end nothing: it says so, and ends rank 0."""

from __future__ import annotations

import os
import signal
from contextlib import suppress

from model.disk.folder import Attempt
from model.disk.record import Outcome
from model.errors import UserError
from runner.job.ranks.leader import Leader, node
from runner.job.ranks.standstill import stands
from runner.job.ranks.start import STOPPED, Follower
from runner.job.ranks.where import Place
from runner.state import ledger, process
from runner.state.endings import Ending

# Of an attempt that neither goes on nor waits for the other runs of its job before it requeues that.
_OVER = frozenset({Outcome.COMPLETED, Outcome.FAILED})


def end_it(follower: Follower, leader: Leader, here: Place, seconds: float) -> None:
    """Note that rank 0 hangs, kill it where it is on this machine, and leave; elsewhere srun ends it.

    Args:
        here: where this process stands.
        seconds: since when nothing was heard of rank 0.
    """
    attempt = follower.folder.attempt(follower.meeting.attempt)
    if attempt.settled is None:
        ending = Ending(Outcome.FAILED, _reason(attempt, follower.place.rank, here, seconds))
        leader.ended(ending, echo=False, of_all=True)  # which rank 0 reads if it goes on after all
        with suppress(UserError):  # the disk may be what has stopped it
            ledger.ended(follower.folder, attempt.number, ending)
    elif attempt.settled[0] not in _OVER:
        os._exit(1)
    if attempt.manifest:
        process.terminate(attempt.manifest, by=signal.SIGKILL)
    os._exit(STOPPED)


def _reason(attempt: Attempt, rank: int, here: Place, seconds: float) -> str:
    said = attempt.manifest
    first = said and (said.ranks[0].node if said.ranks else said.host)
    words = stands({0: None, rank: here}, {0: first or "?", rank: node()})
    return f"hangs: nothing has moved for {seconds:.0f} s; {words}"
