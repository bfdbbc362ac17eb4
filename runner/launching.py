"""What `runner launch` does once the plan stands, and what it shows."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from model.errors import UserError
from model.record import Outcome
from runner import budget, cost, ledger, local, scheduler, status
from runner.console import say, table, watcher
from runner.errors import SchedulerError, SubmitLimit
from runner.launch import Plan, jobs_folder, refreshed, rehearsal, task, write_runs
from runner.launch import submit as submit_tasks
from runner.lock import study_lock
from runner.reproduce import Repeat
from runner.tasks import Shape, Task, label

WAIT_POLL_SECONDS = 2.0
LIMIT_POLL_SECONDS = 60.0  # longest, between two looks at a queue that was full
LOCK_WAIT_SECONDS = 60.0


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
    say_cost(plan)
    profile = plan.cluster.profile
    if profile.executor == "slurm" and left:
        from runner import slurm

        for shape, count in Counter(Shape.of(run) for run in plan.left).items():
            script = slurm.script(profile, jobs_folder(plan), plan.study.name, shape, count)
            sys.stdout.write("\n" + script)
            say_start(script)


def estimated(plan: Plan) -> cost.Estimate:
    """What is left of a plan will cost."""
    return cost.estimate(plan.left, plan.cluster.profile, cost.history(plan.root))


def say_cost(plan: Plan) -> None:
    """Say on stderr what is left of a plan will cost, and from what that is known."""
    for line in estimated(plan).lines():
        say(line)


def say_start(script: str) -> None:
    """Say when Slurm expects the first job to start; a dry run goes on without an answer, and says why."""
    try:
        start = cost.test_only(script)
    except SchedulerError as error:
        say(f"no start estimate: {error}")
    else:
        say(f"Slurm expects the first job to start at {start}" if start else "Slurm gives no start estimate")


def reserve(plan: Plan) -> None:
    """Reserve what a launch costs. Raises InvalidFile where a budget does not hold it."""
    limits = budget.of_study(plan.study.name, plan.study.file.budget, plan.study.document)
    limits += budget.of_profile(plan.cluster)
    budget.reserve(plan.root, plan.study.name, limits, estimated(plan))


def run_here(plan: Plan) -> int:
    """Run what is left on this machine, and give the exit code."""
    plan, tasks = _prepared(plan)
    say(f"{len(plan.runs)} runs at scale {plan.scale}, {len(tasks)} to do, in {plan.root / plan.study.name}")
    expected = {str(plan.folder(run).path): run.expected_outcome for run, _ in plan.runs}
    if tasks:
        local.run_queue(tasks, plan.cluster.profile, watcher(len(tasks), expected), _claim)
    return _summary(plan)


def _prepared(plan: Plan) -> tuple[Plan, list[Task]]:
    """Repair what earlier launches left, and write what this one is to do."""
    status.reconciled(plan.root, plan.study.name)
    with _alone(plan):
        plan = refreshed(plan)
        reserve(plan)
        return plan, write_runs(plan)


@contextmanager
def _alone(plan: Plan) -> Iterator[None]:
    with study_lock(plan.root / plan.study.name, LOCK_WAIT_SECONDS) as held:
        if not held:
            raise UserError(f"another launch of {plan.study.name} is at work; try again when it is done")
        yield


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
    with _alone(plan):
        plan = refreshed(plan)
        reserve(plan)
        tasks = write_runs(plan)
        left = _submit_tasks(plan, tasks, wait=wait)
    count = len(tasks) - len(left)
    say(f"{len(plan.runs)} runs at scale {plan.scale}, {count} submitted to {plan.cluster.name}")
    say(f"`runner status {plan.study.name}` shows them")
    return _wait(plan, left) if wait else 0


def _submit_tasks(
    plan: Plan, tasks: Sequence[Task], exclude: Sequence[str] = (), wait: bool = False
) -> Sequence[Task]:
    """Submit, and put the profile's line before Slurm's words where they are about one of its settings.

    Args:
        wait: give what the queue has no room for now; otherwise that is an error.
    """
    try:
        submit_tasks(plan, tasks, exclude)
        return ()
    except SubmitLimit as limit:
        if not wait:
            raise
        say(f"{limit}")
        return limit.left
    except SchedulerError as error:
        marks = plan.cluster.document.marks
        settings = [
            ("slurm", name) for name in ("partition", "account", "qos", "reservation", "constraint", "gres")
        ]
        named = [marks[path] for path in settings if path in marks and path[1] in str(error).lower()]
        if not named:
            raise
        raise type(error)(f"{named[0]}: {error}") from error


def _wait(plan: Plan, left: Sequence[Task]) -> int:
    """Wait until all has ended, starting again what a cause outside of it has ended.

    Args:
        left: what the queue had no room for; submitted in its turn, asked for less and less often.
    """
    pause, due = WAIT_POLL_SECONDS, time.monotonic()
    while True:
        states = _states(plan)
        waiting = {task.folder.path for task in left}
        ended = [state for state in states if state.folder.path not in waiting]
        again = [state for state in ended if _worth_another(state, plan.cluster.profile.retries)]
        if again:
            left = [*left, *_resubmit(plan, again)]
        elif not left and not ledger.in_flight(states):
            return _summary(plan)
        if left and time.monotonic() >= due:
            with _alone(plan):
                still = _submit_tasks(plan, left, wait=True)
            pause = min(2 * pause, LIMIT_POLL_SECONDS) if len(still) == len(left) else WAIT_POLL_SECONDS
            left, due = still, time.monotonic() + pause
        time.sleep(WAIT_POLL_SECONDS)


# Memory that ran out, a loss that is not finite, or an error in the code would end the same way again.
RETRIED = frozenset({Outcome.NODE_FAILED, Outcome.PREEMPTED, Outcome.LOST})


def _worth_another(state: ledger.RunState, retries: int) -> bool:
    return state.phase == "ended" and state.outcome in RETRIED and not state.done and state.attempt <= retries


def _resubmit(plan: Plan, states: Sequence[ledger.RunState]) -> Sequence[Task]:
    """Start the next attempts of these runs; gives those that the queue had no room for."""
    bad = {node for state in states if state.outcome is Outcome.NODE_FAILED and (node := _node(state))}
    for state in states:
        say(f"{label(state.brief)}: attempt {state.attempt} ended {state.outcome}; trying again")
    with _alone(plan):
        current = dataclasses.replace(refreshed(plan), runs=[(state.run, state) for state in states])
        return _submit_tasks(current, write_runs(current), sorted(bad), wait=True)


def _node(state: ledger.RunState) -> str | None:
    manifest = state.folder.manifest(state.attempt)
    return manifest.slurm.get("SLURM_JOB_NODELIST") if manifest else None


def start(plan: Plan, wait: bool | None) -> int:
    """Start what is left where the plan's profile says, and give the exit code.

    Args:
        wait: until all has ended; None: on this machine, not on a cluster.
    """
    if plan.cluster.profile.executor == "local":
        return detach(plan.root) if wait is False else run_here(plan)
    return submit(plan, wait=bool(wait))


def start_repeat(repeat: Repeat) -> None:
    """Start the next attempt of a run that repeats another: to its end here, or into Slurm's queue."""
    run, profile = repeat.state.run, repeat.cluster.profile
    todo = task(repeat.folder, run)
    if profile.executor == "local":
        expected = {str(repeat.folder.path): repeat.original.outcome or run.expected_outcome}
        local.run_queue([todo], profile, watcher(1, expected), _claim)
    else:
        from runner import slurm

        slurm.submit([todo], profile, repeat.folder.path.parent / ".submitit", repeat.study)


def rehearse(plan: Plan) -> int:
    """Run each cell of a plan for two steps and say what would fail; the study itself is not touched."""
    cluster = dataclasses.replace(plan.cluster, profile=plan.cluster.profile.rehearsal)
    short = rehearsal(plan, cluster)
    say(f"rehearsal: {len(short.runs)} runs of two steps, as study {short.study.name}")
    return start(short, wait=True)


def _states(plan: Plan) -> list[ledger.RunState]:
    wanted = {run.run_id for run, _ in plan.runs}
    return [state for state in status.reconciled(plan.root, plan.study.name) if state.brief.run_id in wanted]


def _summary(plan: Plan) -> int:
    """Print how all of the plan's runs stand; 0 if each ended as expected."""
    found = {state.brief.run_id: state for state in _states(plan)}
    states = [found[run.run_id] for run, _ in plan.runs]
    rows = [
        [state.brief.run_id, label(state.brief), _verdict(state), state.reason or state.brief.because or ""]
        for state in states
    ]
    table(["run", "factors", "outcome", "reason"], rows)
    return 0 if all(state.as_expected for state in states) else 1


def _verdict(state: ledger.RunState) -> str:
    if state.phase != "ended":
        return state.phase
    if state.outcome is state.brief.expected_outcome is Outcome.COMPLETED:
        return "completed"
    expected = "as expected" if state.as_expected else f"expected {state.brief.expected_outcome}"
    return f"{state.outcome} ({expected})"
