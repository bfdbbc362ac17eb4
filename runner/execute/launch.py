"""Starts a plan's remaining runs: writes them to disk, then runs them here or submits them to Slurm."""

from __future__ import annotations

import logging
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path

import runner
from model.record.errors import UserError
from model.record.folder import folders
from model.record.units import counted
from runner.execute import local
from runner.execute.queue import turn
from runner.execute.reconcile import reconciled
from runner.execute.slurm import client, site
from runner.execute.slurm import submit as slurm
from runner.execute.slurm.refusals import explained, is_for_ever, released_by, too_long
from runner.execute.slurm.submit import SubmitLimit
from runner.inputs.profile import Cluster
from runner.plan import budget, cost
from runner.plan.plan import Plan, refreshed, write_runs
from runner.state import guard
from runner.state.attempts import JobShape, NextAttempt, jobs_folder
from runner.state.filesystem import locked, require_writable
from runner.state.runs import MOST_NAMED, warn_once
from runner.state.slurm import NoAnswer, SchedulerError, require

REASON_SECONDS = 0.5, 1.0  # how long Slurm has to say why a new job does not start
log = logging.getLogger(__name__)


def run_here(plan: Plan, watcher: local.Watcher) -> None:
    """Run the plan's remaining runs on this machine, once it is free, and wait for them."""
    warn_of_risks(plan.study_folder, plan.cluster)
    reconciled(plan.root, plan.study.name)
    with turn(plan.study.name, plan.root) if refreshed(plan).left else nullcontext() as waited:
        if waited:
            reconciled(plan.root, plan.study.name)
        with study_locked(plan):
            now, attempts = _next_attempts(plan)
        _log_progress(plan, f"{len(attempts)} to do{_not_started(plan, now)}, in {plan.study_folder}")
        if attempts:
            local.run_queue(attempts, plan.cluster, watcher)


def submit(plan: Plan, wait: bool) -> Sequence[NextAttempt]:
    """Submit the plan's remaining runs to Slurm.

    Args:
        wait: return the attempts to submit later, instead of raising an error: those that do not fit into the
            queue now, and those for which sbatch gives no answer.

    Raises:
        SchedulerError: Slurm refused or cannot be reached.
    """
    if plan.left:  # other names for runs that are done need no cluster
        require("sbatch")
        site.max_array_size()  # if Slurm does not answer, nothing is written
        _require_time_there(plan)
    warn_of_risks(plan.study_folder, plan.cluster)
    reconciled(plan.root, plan.study.name)
    with study_locked(plan):
        now, attempts = _next_attempts(plan)
        left = submit_attempts(plan, attempts, wait=wait) if attempts else []
    submitted = f"{len(attempts) - len(left)} submitted to {plan.cluster.name}"
    _log_progress(plan, f"{submitted}{_not_started(plan, now)}")
    log.info("see their status with `runner status %s`", plan.study.name)
    return left


def _log_progress(plan: Plan, progress: str) -> None:
    log.info("%s at scale %s, %s", counted(len(plan.runs), "run"), plan.scale, progress)


def risks(study: Path, cluster: Cluster) -> Iterator[str]:
    """Sentences about what a group could replace, because it lies in a folder that its members can write to.

    Args:
        study: a study's folder, whether or not it exists.
    """
    for _, place, who in guard.replaceable([study]):
        yield f"{who} can write to {place} and replace {study}: jobs run only the code of their launch"
    code = [cluster.file, Path(sys.executable), Path(runner.__file__ or "")]
    by_place = dict[tuple[Path, str], list[str]]()
    for path, place, who in guard.replaceable(code):
        by_place.setdefault((place, who), []).append(str(path))
    for (place, who), paths in by_place.items():
        named = " and ".join(paths)
        yield f"{who} can write to {place} and replace {named}, which would run as you: your home is safer"


def warn_of_risks(study: Path, cluster: Cluster) -> None:
    """Say once what `risks` finds."""
    for risk in risks(study, cluster):
        warn_once(risk)


def refusals(plan: Plan) -> Iterator[str]:
    """Why a launch of this plan would be refused, as far as can be told without starting it."""
    if limits := budget.limits_of(plan):
        for problem in budget.exceeded(plan.root, limits, cost.estimate_plan(plan)):
            yield problem.shown()
    checks: list[Callable[[], None]] = [lambda: require_writable(plan.study_folder)]
    if plan.left:
        room = _require_room_here if plan.cluster.profile.executor == "local" else _require_time_there
        checks += [lambda: _require_own(plan), lambda: room(plan)]
    for check in checks:
        try:
            check()
        except (UserError, SchedulerError) as error:
            yield str(error)


def _require_own(plan: Plan) -> None:
    """Raise UserError if others can change what has been written of the runs."""
    guard.require_closed_to_strangers(plan.study_folder)
    if (study := plan.study_folder).exists():
        on_disk = {*folders(study)}
        runs = [plan.folder(run).path for run in plan.left if run.run_id in on_disk]
        guard.require_own(study, *runs)


def _require_room_here(plan: Plan) -> None:
    """Raise InvalidFile if this machine has too few GPUs, or lacks the program that starts runs."""
    local.require_program(plan.cluster)
    local.devices_for(plan.cluster, [JobShape.of(run).processes for run in plan.left])


def _require_time_there(plan: Plan) -> None:
    """Raise SchedulerError if Slurm would let runs wait for ever, for their time limit."""
    longest = max((run.time_limit_seconds or 0 for run in plan.left), default=0)
    with suppress(NoAnswer):
        if problem := too_long(plan.cluster, longest):
            raise SchedulerError(problem)


def study_locked(plan: Plan) -> AbstractContextManager[None]:
    """Hold the study's lock. Raises UserError if another launch keeps it."""
    refusal = f"another launch of {plan.study.name} is running; try again when it is done"
    return locked(plan.study_folder, refusal)


def _next_attempts(plan: Plan) -> tuple[Plan, list[NextAttempt]]:
    """Refresh the plan, then reserve and write what is still to do. The caller holds the study's lock."""
    now = refreshed(plan)
    budget.reserve(now.root, now.study.name, budget.limits_of(now), cost.estimate_plan(now))
    return now, write_runs(now)


def _not_started(plan: Plan, now: Plan) -> str:
    """`; 5 are in flight; ...`: runs that are not done and that this launch does not start."""
    waiting = sum(state is not None and state.in_flight for _, state in now.runs)
    cancelled = 0 if plan.once else len(plan.runs) - len(now.runs)
    others = f"; {waiting} in flight" if waiting else ""
    if cancelled:
        others += f"; {cancelled} cancelled since this launch began: launch again to start them"
    return others


def submit_attempts(
    plan: Plan, attempts: Sequence[NextAttempt], exclude: Sequence[str] = (), wait: bool = False
) -> Sequence[NextAttempt]:
    """Submit attempts; an error about a profile setting starts with the position of that setting.

    Args:
        exclude: nodes to avoid.
        wait: return the attempts to submit later, instead of raising SubmitLimit or NoAnswer.

    Raises:
        SubmitLimit: the queue is full; the error has the attempts that are left.
        NoAnswer: Slurm does not answer; attempts that were submitted have their job's id in their ledgers.
        SchedulerError: sbatch refused.
    """
    folder = jobs_folder(plan.study_folder)
    try:
        slurm.submit(attempts, plan.cluster.profile, folder, plan.study.name, exclude)
        named = {attempt.record.job_id: attempt.name for attempt in attempts}
        warn_of_stuck(plan.cluster, {job_id: name for job_id, name in named.items() if job_id}, wait=not wait)
        return ()
    except SubmitLimit as limit:
        if not wait:
            raise
        log.warning("%s", limit)
        return limit.left
    except NoAnswer as error:
        if not wait:
            raise
        warn_once(f"{error}; trying again until Slurm answers")
        return [attempt for attempt in attempts if not attempt.record.job_id]
    except SchedulerError as error:
        raise type(error)(explained(str(error), plan.cluster)) from error


def warn_of_stuck(cluster: Cluster, runs: Mapping[str, str], wait: bool = False) -> None:
    """Name the runs that Slurm has accepted and will not start, however long they wait.

    Args:
        runs: the runs' names, by the ids of their jobs.
        wait: give Slurm a moment to say why a job waits that has just been submitted.
    """
    stuck = defaultdict(list)
    with suppress(NoAnswer):
        reasons = client.pending_reasons(runs)
        for pause in REASON_SECONDS if wait else ():
            if all(reasons.values()):
                break
            time.sleep(pause)
            reasons = client.pending_reasons(runs)
        for job_id, why in reasons.items():
            if is_for_ever(why):
                stuck[why].append(job_id)
    for why, jobs in stuck.items():
        names = [runs[job_id] for job_id in jobs]
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        release = released_by(why, jobs[0].partition("_")[0])
        ends = f"`runner cancel {names[0] if len(names) == 1 else names[0].partition('/')[0]}` ends that"
        what = (
            f"Slurm holds it: `{release}` lets it start" if release else f"it never starts as asked: {ends}"
        )
        warn_once(f"{', '.join(names[:MOST_NAMED])}{more}: {explained(why, cluster)}; {what}")
