"""Starts what is left of a plan: writes it to disk, then runs it here or submits it to Slurm."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from model.errors import UserError
from runner.execute import local
from runner.execute.reconcile import reconciled
from runner.execute.slurm import submit as slurm
from runner.execute.slurm.submit import SubmitLimit
from runner.plan import budget, cost
from runner.plan.plan import Plan, refreshed
from runner.plan.write import write_runs
from runner.spec.profile import Cluster
from runner.state.lock import study_lock
from runner.state.slurm import SchedulerError, require
from runner.state.tasks import Task, jobs_folder

LOCK_WAIT_SECONDS = 60.0
log = logging.getLogger(__name__)


def run_here(plan: Plan, watcher: local.Watcher) -> None:
    """Run what is left on this machine, to its end."""
    reconciled(plan.root, plan.study.name)
    with alone(plan):
        tasks = _next_tasks(plan)
    where = plan.root / plan.study.name
    log.info("%d runs at scale %s, %d to do, in %s", len(plan.runs), plan.scale, len(tasks), where)
    if tasks:
        local.run_queue(tasks, plan.cluster.profile, watcher)


def submit(plan: Plan, wait: bool) -> Sequence[Task]:
    """Submit what is left to Slurm.

    Args:
        wait: return the tasks that the queue has no room for now; otherwise that is an error.

    Raises:
        SchedulerError: Slurm refused or cannot be reached.
    """
    require("sbatch")
    reconciled(plan.root, plan.study.name)
    with alone(plan):
        tasks = _next_tasks(plan)
        left = submit_tasks(plan, tasks, wait=wait)
    submitted = len(tasks) - len(left)
    log.info(
        "%d runs at scale %s, %d submitted to %s", len(plan.runs), plan.scale, submitted, plan.cluster.name
    )
    log.info("`runner status %s` shows them", plan.study.name)
    return left


@contextmanager
def alone(plan: Plan) -> Iterator[None]:
    """Hold the study's lock. Raises UserError where another launch keeps it."""
    with study_lock(plan.root / plan.study.name, LOCK_WAIT_SECONDS) as held:
        if not held:
            raise UserError(f"another launch of {plan.study.name} is at work; try again when it is done")
        yield


def _next_tasks(plan: Plan) -> list[Task]:
    """Reserve what is left of the plan as things are now, and write it. The study's lock is held."""
    now = refreshed(plan)
    budget.reserve(now.root, now.study.name, budget.limits_of(now), cost.of_plan(now))
    return write_runs(now)


def submit_tasks(
    plan: Plan, tasks: Sequence[Task], exclude: Sequence[str] = (), wait: bool = False
) -> Sequence[Task]:
    """Submit tasks; an error about one of the profile's settings begins with that setting's line.

    Args:
        exclude: nodes to avoid.
        wait: return the tasks that the queue has no room for now; otherwise that is an error.

    Raises:
        SubmitLimit: the queue is full; the error has what is left.
        SchedulerError: sbatch refused.
    """
    folder = jobs_folder(plan.root / plan.study.name)
    try:
        slurm.submit(tasks, plan.cluster.profile, folder, plan.study.name, exclude)
        return ()
    except SubmitLimit as limit:
        if not wait:
            raise
        log.warning("%s", limit)
        return limit.left
    except SchedulerError as error:
        if place := _setting_in(error, plan.cluster):
            raise type(error)(f"{place}: {error}") from error
        raise


def _setting_in(error: SchedulerError, cluster: Cluster) -> str | None:
    """Where the profile has the setting that Slurm's words are about."""
    for name in ("partition", "account", "qos", "reservation", "constraint", "gres"):
        if ("slurm", name) in cluster.document.marks and name in str(error).lower():
            return str(cluster.document.marks["slurm", name])
    return None
