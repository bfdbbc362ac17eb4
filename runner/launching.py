"""What `runner launch` does once the plan stands, and what it shows."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from model.record import Outcome
from runner import ledger, local, scheduler, status
from runner.console import say, table, watcher
from runner.launch import Plan, jobs_folder, label, write_runs
from runner.launch import submit as submit_tasks
from runner.tasks import Task

WAIT_POLL_SECONDS = 2.0


def show_plan(plan: Plan) -> None:
    """The runs, what would be done about each, and on Slurm the batch script."""
    left = {run.run_id for run in plan.left}
    rows = [
        [
            run.run_id,
            label(run),
            run.expected_outcome.value,
            "start" if run.run_id in left else f"skip: {state.outcome or state.phase}" if state else "",
        ]
        for run, state in plan.runs
    ]
    table(["run", "factors", "expected", "would"], rows)
    profile = plan.cluster.profile
    if profile.executor == "slurm" and left:
        from runner import slurm

        sys.stdout.write("\n" + slurm.script(profile, jobs_folder(plan), plan.study.name, len(left)))


def run_here(plan: Plan) -> int:
    """Run what is left on this machine, and give the exit code."""
    status.reconciled(plan.root, plan.study.name)
    tasks = write_runs(plan)
    say(f"{len(plan.runs)} runs at scale {plan.scale}, {len(tasks)} to do, in {plan.root / plan.study.name}")
    expected = {str(plan.folder(run).path): run.expected_outcome for run, _ in plan.runs}
    if tasks:
        local.run_queue(tasks, plan.cluster.profile, watcher(len(tasks), expected), _claim)
    return _summary(plan)


def _claim(task: Task) -> bool:
    if ledger.claim(task.folder, task.attempt, "local"):
        return True
    say(f"{task.label}: another launch has it")
    return False


def detach(root: Path) -> int:
    """Start this same command in the background and return."""
    root.mkdir(parents=True, exist_ok=True)
    log = root / "launch.log"
    arguments = [word for word in sys.argv[1:] if word != "--detach"]
    with log.open("ab") as file:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "runner.cli", *arguments],
            stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True,
        )  # fmt: skip
    say(f"process {process.pid} runs the queue; it logs to {log}; `runner status` shows it")
    return 0


def submit(plan: Plan, wait: bool) -> int:
    """Submit what is left to Slurm, and give the exit code.

    Raises:
        SchedulerError: Slurm refused or cannot be reached.
    """
    scheduler.require("sbatch")
    status.reconciled(plan.root, plan.study.name)
    count = submit_tasks(plan, write_runs(plan))
    say(f"{len(plan.runs)} runs at scale {plan.scale}, {count} submitted to {plan.cluster.name}")
    say(f"`runner status {plan.study.name}` shows them")
    if not wait:
        return 0
    while any(state.phase in ("queued", "running") for state in _states(plan)):
        time.sleep(WAIT_POLL_SECONDS)
    return _summary(plan)


def _states(plan: Plan) -> list[ledger.RunState]:
    wanted = {run.run_id for run, _ in plan.runs}
    return [state for state in status.reconciled(plan.root, plan.study.name) if state.run.run_id in wanted]


def _summary(plan: Plan) -> int:
    """Print how all of the plan's runs stand; 0 if each ended as expected."""
    found = {state.run.run_id: state for state in _states(plan)}
    states = [found[run.run_id] for run, _ in plan.runs]
    rows = [
        [state.run.run_id, label(state.run), _verdict(state), state.reason or state.run.because or ""]
        for state in states
    ]
    table(["run", "factors", "outcome", "reason"], rows)
    return 0 if all(state.as_expected for state in states) else 1


def _verdict(state: ledger.RunState) -> str:
    if state.phase != "ended":
        return state.phase
    if state.outcome is state.run.expected_outcome is Outcome.COMPLETED:
        return "completed"
    expected = "as expected" if state.as_expected else f"expected {state.run.expected_outcome}"
    return f"{state.outcome} ({expected})"
