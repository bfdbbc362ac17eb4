"""Waits until completed runs on Slurm have profiled some steps, which they do after writing the result."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from model.record.folder import PROFILE
from model.record.outcome import Outcome
from model.record.records import now
from model.record.units import counted
from runner.execute.slurm import client
from runner.execute.watch import Patience
from runner.job.tasks import load
from runner.state.ledger import RunState
from runner.state.runs import name_of
from runner.state.slurm import NoAnswer

POLL_SECONDS = 2.0  # between looks at files
WITHIN = timedelta(minutes=10)  # after the end of a run; nobody waits longer for its profile
YET = "%s has no profile of its steps yet: its job may still make it"
NEVER = "%s completed without a profile of its steps: its output may say why"
log = logging.getLogger(__name__)


def wait_until_profiled(states: Iterable[RunState], since: datetime) -> None:
    """Wait for the profiles of completed runs, and name those that are left without one.

    Args:
        since: runs that ended before are not named, unless they were waited for.
    """
    lacking = [state for state in states if _lacks_profile(state)]
    waiting = [state for state in lacking if _ended_after(state, now() - WITHIN)]
    if _going_on(waiting):
        runs = counted(len(waiting), "completed run")
        log.info("profiling the steps of %s; after Ctrl-C the jobs still do it", runs)
    patience = Patience()
    while _going_on(waiting):
        while (yet := sum(map(_lacks_profile, waiting))) and not patience.due(yet):
            time.sleep(POLL_SECONDS)
    ours = [state for state in lacking if state in waiting or _ended_after(state, since)]
    left = [state for state in ours if _lacks_profile(state)]
    running = _running(left)  # suspended jobs, for example
    for state in left:
        log.warning(YET if state.job_id in running else NEVER, name_of(state))


def _lacks_profile(state: RunState) -> bool:
    if state.outcome is not Outcome.COMPLETED or not state.latest or not state.job_id:
        return False
    return load(state.brief.task).profiles and not (state.latest.path / PROFILE).exists()


def _ended_after(state: RunState, since: datetime) -> bool:
    ended = state.latest.ended_at if state.latest else None
    return ended is not None and ended > since


def _going_on(states: Sequence[RunState]) -> bool:
    return bool(_running([state for state in states if _ended_after(state, now() - WITHIN)]))


def _running(states: Sequence[RunState]) -> set[str]:
    """Jobs of runs that lack a profile, as far as they run. While Slurm does not answer, that is assumed."""
    jobs = {state.job_id for state in states if state.job_id and _lacks_profile(state)}
    try:
        return jobs & client.running() if jobs else jobs
    except NoAnswer:
        return jobs
