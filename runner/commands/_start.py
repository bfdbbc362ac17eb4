"""Starts a plan and shows how its runs ended; shared by `launch` and `retry`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress

from model.record.files import no_link
from model.record.outcome import Outcome
from runner.commands._console import say, table
from runner.commands._forecast import Forecast
from runner.commands._options import typed
from runner.commands._progress import verdict, watcher
from runner.commands._table import filled, labels, newest, written
from runner.execute.launch import run_here, submit
from runner.execute.wait import states_of, wait_for
from runner.plan.plan import REHEARSAL, Plan
from runner.state import guard
from runner.state.ledger import RunState
from runner.state.runs import name_of


def start(plan: Plan, wait: bool | None, fail_fast: bool = False) -> int:
    """Start the plan's remaining runs under its profile, and return the exit code; `wait` as for `run`."""
    if detached(plan, wait):
        return 0
    return summary(plan) if run(plan, wait, fail_fast) else 0


def detached(plan: Plan, wait: bool | None) -> bool:
    """Start this command again in the background, if that is what was asked for on this machine."""
    if plan.cluster.profile.executor == "slurm" or wait is not False:
        return False
    guard.make(plan.root)
    log = plan.root / "launch.log"
    arguments = [word for word in sys.argv[1:] if word != "--detach"]
    with open(log, "ab", opener=no_link) as file:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "runner", *arguments],
            stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True,
        )  # fmt: skip
    say(f"running in the background as process {process.pid}; log: {log}; see progress with `runner status`")
    return True


def run(plan: Plan, wait: bool | None, fail_fast: bool = False) -> bool:
    """Start the plan's remaining runs; returns whether they were waited for.

    Whoever interrupts it is told how to go on.

    Args:
        wait: whether to wait for all runs to end; None waits on this machine but not on a cluster.
        fail_fast: start no more runs after one that ended unexpectedly; on a cluster, only if waiting.
    """
    try:
        return _run(plan, wait, fail_fast)
    except KeyboardInterrupt:
        if (plan.root / plan.study.name).is_dir():
            with suppress(OSError):  # the terminal may be gone
                say(f"next: {_goes_on(plan)}")
        raise


def _run(plan: Plan, wait: bool | None, fail_fast: bool) -> bool:
    profile = plan.cluster.profile
    if profile.executor == "local":
        run_here(plan, watcher(Forecast([run for run, _ in plan.runs], profile.max_parallel), fail_fast))
    else:
        left = submit(plan, wait=bool(wait))
        if not wait:
            return False
        wait_for(plan, left, fail_fast)
    return True


def _goes_on(plan: Plan) -> str:
    """What becomes of a launch that was interrupted."""
    runner, name = typed(), plan.study.name
    if plan.cluster.profile.executor == "local":
        return f"`{runner} status {name}` shows what is left; to go on, launch the study again"
    return (
        f"what is submitted goes on; `{runner} status {name}` shows it, `{runner} cancel {name}` ends it; "
        "for the rest, launch the study again"
    )


def summary(plan: Plan) -> int:
    """Print the outcomes of all runs in the plan; returns 0 if all are there and as expected, else 1."""
    found = {state.brief.run_id: state for state in states_of(plan)}
    states = [found[run.run_id] for run, _ in plan.runs if run.run_id in found]
    rows = [
        [
            name_of(state),
            label,
            _verdict(state),
            *written(*newest(state)),
            state.reason or state.brief.because or "",
        ]
        for state, label in zip(states, labels(states), strict=True)
    ]
    table(*filled(["run", "factors", "outcome", "loss", "last tokens/s", "reason"], rows, states))
    if states and not plan.study.name.endswith(REHEARSAL):
        _say_next(states)
    if gone := len(plan.runs) - len(states):
        folders = "the folder of 1 run was" if gone == 1 else f"the folders of {gone} runs were"
        say(f"{folders} removed during the launch: launch again to run what is missing")
    return 0 if not gone and all(state.as_expected for state in states) else 1


def _say_next(states: Sequence[RunState]) -> None:
    """Say what a user does next: look at the first surprise, then at the results."""
    runner = typed()
    for state in [state for state in states if state.phase == "ended" and not state.as_expected][:1]:
        say(f"next: `{runner} explain {name_of(state)}` shows what happened")
    if any(state.outcome is Outcome.COMPLETED for state in states):
        study = states[0].brief.study
        say(f"next: `{runner} collect`, then `{runner} sql QUERY`; or `{runner} report {study}`")


def _verdict(state: RunState) -> str:
    if state.phase != "ended" or state.outcome is None:
        return state.phase
    return verdict(state.outcome, state.brief.expected_outcome)
