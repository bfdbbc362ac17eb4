"""Waits for runs on Slurm and for their profiles, and retries those that would get farther."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from model.record.folder import PROFILE, Attempt
from model.record.outcome import Outcome
from model.record.records import now
from model.record.units import counted
from runner.execute.cancel import cancel
from runner.execute.launch import study_locked, submit_attempts, warn_of_stuck
from runner.execute.reconcile import Patience, RunWatch, reconciled
from runner.execute.slurm import client
from runner.job.tasks import load
from runner.plan.plan import Plan, refreshed, write_runs
from runner.state.attempts import NextAttempt, label
from runner.state.ledger import RunState
from runner.state.runs import in_flight, name_of, warn_once
from runner.state.slurm import NoAnswer, SchedulerError

POLL_SECONDS = 2.0  # between looks at files; Slurm is asked less often
PROFILE_WITHIN = timedelta(minutes=10)  # after the end of a run; nobody waits longer for its profile
log = logging.getLogger(__name__)


def wait_for(plan: Plan, left: Sequence[NextAttempt], fail_fast: bool = False) -> None:
    """Wait until all runs of a plan have ended, also through times in which Slurm does not answer.

    A completed run has its result first, and then profiles some steps. That is waited for, too.

    Args:
        left: attempts that are not submitted yet; they are submitted as room appears, with growing intervals
            between tries.
        fail_fast: submit no more after a run that ended unexpectedly, and cancel those in flight.
    """
    began, watch, tries = now(), RunWatch(plan.root, plan.study.name), Patience()
    stopped, failed_nodes = False, set[str]()
    while True:
        states = _within_plan(plan, watch.look())
        for attempt in left:
            if attempt.removed:
                warn_once(f"{attempt.label}: {attempt.removed}")
        # An attempt stays left while it has neither a job nor an ending: its sbatch may not have answered.
        known = [state for state in states if state.job_id or state.phase == "ended"]
        newest = {state.folder.path: state.attempt for state in known}
        present = [attempt for attempt in left if not attempt.removed]
        left = [attempt for attempt in present if newest.get(attempt.folder.path, 0) < attempt.number]

        waiting = {attempt.folder.path for attempt in left}
        submitted = [state for state in states if state.folder.path not in waiting]
        retried = [state for state in submitted if is_retried(state, plan.cluster.profile.retries)]
        stopped = stopped or (fail_fast and _cancel_others(submitted, retried))
        if stopped:
            left, retried = (), []
        if retried:
            failed_nodes.update(*(state.latest.failed_nodes for state in retried if state.latest))
            left, tries = [*left, *_next_attempts(plan, retried)], Patience()
        elif not left and not in_flight(states):
            break
        if left and tries.due(len(left)):
            with study_locked(plan):  # an attempt that is claimed is not submitted a second time
                submit_attempts(plan, left, exclude=sorted(failed_nodes), wait=True)
        if watch.asked:
            queued = [state for state in states if state.phase == "queued" and state.job_id]
            warn_of_stuck(plan.cluster, {state.job_id or "": name_of(state) for state in queued})
        time.sleep(POLL_SECONDS)
    wait_until_profiled(states, began)


def states_of_plan(plan: Plan) -> list[RunState]:
    """Reconciled status of the plan's runs, in no particular order."""
    return _within_plan(plan, reconciled(plan.root, plan.study.name))


def wait_for_others(plan: Plan, told: Callable[[int], None]) -> None:
    """Wait for runs of a plan that another launch has started.

    Args:
        told: called once with their number, if there are any.
    """
    watch, first = RunWatch(plan.root, plan.study.name), True
    while flying := in_flight(_within_plan(plan, watch.look())):
        if first:
            told(len(flying))
        first = False
        time.sleep(POLL_SECONDS)


def _within_plan(plan: Plan, states: Iterable[RunState]) -> list[RunState]:
    wanted = {run.run_id for run, _ in plan.runs}
    return [state for state in states if state.brief.run_id in wanted]


def _cancel_others(states: Sequence[RunState], retried: Sequence[RunState]) -> bool:
    """Cancel the runs in flight if one ended unexpectedly and is not retried; returns whether it did."""
    failed = [state for state in states if state.phase == "ended" and not state.done and state not in retried]
    if not failed:
        return False
    try:
        cancel(states)
    except SchedulerError as error:  # the next look tries again
        warn_once(str(error))
        return False
    log.info("%s ended as %s: cancelling the runs that are left", name_of(failed[0]), failed[0].outcome)
    return True


class Retry(NamedTuple):
    """Whether `launch --wait` starts a run again after one of its attempts, and why."""

    again: bool
    why: str


def is_retried(state: RunState, retries: int) -> bool:
    """Whether `launch --wait` starts a run again, after it looked at how the run's attempts ended."""
    if state.phase != "ended" or state.latest is None:
        return False
    return retry_after(state.latest, state, retries).again


def retry_after(attempt: Attempt, state: RunState, retries: int) -> Retry:
    """What `launch --wait` does after an attempt that has ended.

    Its profile's `retries` are of endings that the run had no part in (`Outcome.of_machine`); what Slurm or a
    person started again for another reason does not count. Time limits are no such endings: a run that gets
    farther each time is started again however often that takes.

    Args:
        state: of the attempt's run.
    """
    assert attempt.settled
    outcome = attempt.settled[0]
    if outcome is Outcome.COMPLETED:
        return Retry(False, "it completed")
    if outcome in state.brief.expected:
        return Retry(False, "it ended as the study expects")
    if outcome is Outcome.TIMEOUT:  # its job could not see to the next one
        if not state.brief.chain:
            return Retry(False, "its time was up, and it may not go on in a next job")
        result, manifest = attempt.result, attempt.manifest
        if result is None or manifest is None:
            return Retry(False, "its time was up, and it left no result that says how far it came")
        # If it did a step more than the one that it began from, another attempt will, too.
        begun, done = manifest.resumed_step or 0, result.steps
        if done > begun:
            return Retry(True, f"its time was up, and it came from step {begun} to step {done}")
        return Retry(False, f"its time was up, and it came no farther than step {begun}, where it began")
    if outcome is Outcome.CANCELLED:
        return Retry(False, "it was cancelled")
    if not outcome.of_machine:
        return Retry(False, "it would end the same way again")
    until = [earlier for earlier in state.folder.attempts() if earlier.number <= attempt.number]
    count = sum(earlier.settled is not None and earlier.settled[0].of_machine for earlier in until)
    why = "the run had no part in how it ended"
    if count <= retries:
        return Retry(True, f"{why}; of the `retries: {retries}` in today's profile, this is number {count}")
    return Retry(False, f"{why}, but the `retries: {retries}` in today's profile are used up")


def _next_attempts(plan: Plan, states: Sequence[RunState]) -> list[NextAttempt]:
    """The next attempts of runs that have ended."""
    for state in states:
        log.info("%s: attempt %d ended as %s; retrying", label(state.brief), state.attempt, state.outcome)
    with study_locked(plan):
        current = dataclasses.replace(refreshed(plan), runs=[(state.run, state) for state in states])
        return write_runs(current)


def wait_until_profiled(states: Iterable[RunState], since: datetime) -> None:
    """Wait for the profiles of completed runs, and name those that are left without one.

    Args:
        since: runs that ended before are not named, unless they were waited for.
    """
    lacking = [state for state in states if _lacks_profile(state)]
    waiting = [state for state in lacking if _ended_after(state, now() - PROFILE_WITHIN)]
    if _any_still_profiling(waiting):
        runs = counted(len(waiting), "completed run")
        log.info("profiling the steps of %s; after Ctrl-C the jobs still do it", runs)
    patience = Patience()
    while _any_still_profiling(waiting):
        while (yet := sum(map(_lacks_profile, waiting))) and not patience.due(yet):
            time.sleep(POLL_SECONDS)
    ours = [state for state in lacking if state in waiting or _ended_after(state, since)]
    left = [state for state in ours if _lacks_profile(state)]
    running = _still_profiling(left)  # suspended jobs, for example
    for state in left:
        if state.job_id in running:
            log.warning("%s has no profile of its steps yet: its job may still make it", name_of(state))
        else:
            log.warning("%s completed without a profile of its steps: its output may say why", name_of(state))


def _lacks_profile(state: RunState) -> bool:
    if state.outcome is not Outcome.COMPLETED or not state.latest or not state.job_id:
        return False
    return load(state.brief.task).profiles and not (state.latest.path / PROFILE).exists()


def _ended_after(state: RunState, since: datetime) -> bool:
    ended = state.latest.ended_at if state.latest else None
    return ended is not None and ended > since


def _any_still_profiling(states: Sequence[RunState]) -> bool:
    return bool(_still_profiling([state for state in states if _ended_after(state, now() - PROFILE_WITHIN)]))


def _still_profiling(states: Sequence[RunState]) -> set[str]:
    """Jobs of runs that lack a profile, as far as they run. While Slurm does not answer, that is assumed."""
    jobs = {state.job_id for state in states if state.job_id and _lacks_profile(state)}
    try:
        return jobs & client.running() if jobs else jobs
    except NoAnswer:
        return jobs
