"""Starts a plan and shows how its runs ended; shared by `launch` and `retry`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from runner.commands._console import say, table
from runner.commands._progress import verdict, watcher
from runner.execute.launch import run_here, submit
from runner.execute.wait import states_of, wait_for
from runner.plan.plan import Plan
from runner.state.ledger import RunState
from runner.state.tasks import label


def start(plan: Plan, wait: bool | None) -> int:
    """Start the plan's remaining runs under its profile, and return the exit code.

    Args:
        wait: whether to wait for all runs to end; None waits on this machine but not on a cluster.
    """
    if plan.cluster.profile.executor == "local":
        if wait is False:
            return _detach(plan.root)
        run_here(plan, watcher())
    else:
        left = submit(plan, wait=bool(wait))
        if not wait:
            return 0
        wait_for(plan, left)
    return _summary(plan)


def _detach(root: Path) -> int:
    """Start this command again in the background."""
    root.mkdir(parents=True, exist_ok=True)
    log = root / "launch.log"
    arguments = [word for word in sys.argv[1:] if word != "--detach"]
    with log.open("ab") as file:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "runner", *arguments],
            stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True,
        )  # fmt: skip
    say(f"running in the background as process {process.pid}; log: {log}; see progress with `runner status`")
    return 0


def _summary(plan: Plan) -> int:
    """Print the outcomes of all runs in the plan; returns 0 if all are as expected, else 1."""
    found = {state.brief.run_id: state for state in states_of(plan)}
    states = [found[run.run_id] for run, _ in plan.runs]
    rows = [
        [state.brief.run_id, label(state.brief), _verdict(state), state.reason or state.brief.because or ""]
        for state in states
    ]
    table(["run", "factors", "outcome", "reason"], rows)
    return 0 if all(state.as_expected for state in states) else 1


def _verdict(state: RunState) -> str:
    if state.phase != "ended" or state.outcome is None:
        return state.phase
    return verdict(state.outcome, state.brief.expected_outcome)
