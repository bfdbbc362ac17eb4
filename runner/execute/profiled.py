"""Waits until completed runs on Slurm have profiled some steps, which they do after writing the result."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from model.config import Task
from model.disk import profile
from model.disk.record import Outcome, now
from model.units import counted
from runner.execute.slurm import client
from runner.state.ledger import RunState
from runner.state.runs import name_of
from runner.state.slurm import NoAnswer

POLL_SECONDS = 2.0
WITHIN = timedelta(minutes=10)  # after the end of a run; nobody waits longer for its profile
PROFILED: tuple[Task, ...] = ("training", "inference")  # attention alone has no steps
log = logging.getLogger(__name__)


def wait_until_profiled(states: Iterable[RunState], since: datetime) -> None:
    """Wait for the profiles of completed runs, and name those since then that are left without one."""
    lacking = [state for state in states if _lacks_profile(state)]
    waiting = [state for state in lacking if _ended_after(state, now() - WITHIN)]
    if _going_on(waiting):
        runs = counted(len(waiting), "completed run")
        log.info("profiling the steps of %s; after Ctrl-C the jobs still do it", runs)
    while _going_on(waiting):
        time.sleep(POLL_SECONDS)
    for state in lacking:
        if _lacks_profile(state) and _ended_after(state, since):
            log.warning("%s completed without a profile of its steps: its output may say why", name_of(state))


def _lacks_profile(state: RunState) -> bool:
    if state.outcome is not Outcome.COMPLETED or not state.latest or not state.job_id:
        return False
    if state.brief.task not in PROFILED:
        return False
    return not (state.latest.path / profile.FILE).exists()


def _ended_after(state: RunState, since: datetime) -> bool:
    ended = state.latest.ended_at if state.latest else None
    return ended is not None and ended > since


def _going_on(states: Sequence[RunState]) -> bool:
    """Whether the job of one that lacks a profile runs. While Slurm does not answer, that is assumed."""
    left = {state.job_id for state in states if _lacks_profile(state) and _ended_after(state, now() - WITHIN)}
    try:
        return bool(left and left & client.running())
    except NoAnswer:
        return True
