"""Starts a plan for `launch` and `retry`, repeats it as `until:` asks, and shows how its runs ended."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from model.record.errors import UserError
from model.record.files import no_link
from model.record.outcome import Outcome
from model.record.units import counted
from runner.commands._console import say, table
from runner.commands._options import command_prefix
from runner.commands._progress import Forecast, verdict, watcher
from runner.commands._runs import drop_unused_columns, labels, latest_metrics, metric_cells
from runner.execute.launch import run_here, submit
from runner.execute.reconcile import reconciled
from runner.execute.wait import states_of_plan, wait_for, wait_for_others
from runner.inputs.cells import Cell
from runner.inputs.design import Design
from runner.inputs.document import InvalidFile
from runner.plan.plan import REHEARSAL, Plan, refreshed
from runner.plan.precision import comparisons, seconds_per_token
from runner.state import guard
from runner.state.ledger import RunState
from runner.state.runs import name_of


def start(plan: Plan, wait: bool | None, fail_fast: bool = False) -> int:
    """Start the plan's remaining runs under its profile, and return the exit code; `wait` as for `run`."""
    if start_detached(plan, wait):
        return 0
    return summary(plan) if run(plan, wait, fail_fast) else 0


def start_detached(plan: Plan, wait: bool | None) -> bool:
    """Start this command again in the background, if `--detach` asks for that on this machine.

    Returns:
        Whether it did.
    """
    if plan.cluster.profile.executor == "slurm" or wait is not False:
        return False
    guard.make_folder(plan.root)
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
    profile = plan.cluster.profile
    try:
        if profile.executor == "local":
            forecast = Forecast([run for run, _ in plan.runs], profile.max_parallel)
            run_here(plan, watcher(forecast, fail_fast))
            return True
        left = submit(plan, wait=bool(wait))
        if wait:
            wait_for(plan, left, fail_fast)
        return bool(wait)
    except KeyboardInterrupt:
        runner, name = command_prefix(), plan.study.name
        local = f"`{runner} status {name}` shows what is left; to go on, launch the study again"
        slurm = (
            f"what is submitted goes on; `{runner} status {name}` shows it, "
            f"`{runner} cancel {name}` ends it; for the rest, launch the study again"
        )
        if plan.study_folder.is_dir():
            with suppress(OSError):  # the terminal may be gone
                say(f"next: {local if profile.executor == 'local' else slurm}")
        raise


def summary(plan: Plan) -> int:
    """Print the outcomes of all runs in the plan; returns 0 if all are there and as expected, else 1."""
    by_id = {state.brief.run_id: state for state in states_of_plan(plan)}
    states = [by_id[run.run_id] for run, _ in plan.runs if run.run_id in by_id]
    rows = []
    for state, label in zip(states, labels(states), strict=True):
        ending: str = state.phase
        if state.phase == "ended" and state.outcome:
            ending = verdict(state.outcome, state.brief.expected)
        because = state.reason or state.brief.because or ""
        rows.append([name_of(state), label, ending, *metric_cells(*latest_metrics(state)), because])
    table(
        *drop_unused_columns(["run", "factors", "outcome", "loss", "last tokens/s", "reason"], rows, states)
    )
    if states and not plan.study.name.endswith(REHEARSAL):
        # What a user does next: look at the first surprise, then at the results.
        runner = command_prefix()
        for state in [state for state in states if state.phase == "ended" and not state.as_expected][:1]:
            say(f"next: `{runner} explain {name_of(state)}` shows what happened")
        if any(state.outcome is Outcome.COMPLETED for state in states):
            study = states[0].brief.study
            say(f"next: `{runner} collect`, then `{runner} sql QUERY`; or `{runner} report {study}`")
    if gone := len(plan.runs) - len(states):
        folders = "the folder of 1 run was" if gone == 1 else f"the folders of {gone} runs were"
        say(f"{folders} removed during the launch: launch again to run what is missing")
    return 0 if not gone and all(state.as_expected for state in states) else 1


def without_idle_repeats(cells: Sequence[Cell], design: Design) -> list[Cell]:
    """The cells, without repeats that only `until` adds to cells that are not expected to complete."""
    return [cell for cell in cells if cell.repeat <= design.repeats or Outcome.COMPLETED in cell.expected]


def first_round(whole: Plan, design: Design) -> Plan:
    """The part of a plan that a launch starts with: the study's repeats, and those of earlier launches."""
    number = max([design.repeats, *(run.repeat for run, state in whole.runs if state)])
    return _with_runs(whole, {run.run_id for run, _ in whole.runs if run.repeat <= number})


def first_blocks(plan: Plan, count: int) -> Plan:
    """Choose what is left of a plan's first unfinished blocks, and say so; the rest is planned for later.

    A block is unfinished while a run of it is in flight or did not start, or lost its place on a machine. One
    that failed by itself would hold up all later blocks for ever.

    Raises:
        UserError: its runs are in no blocks.
    """
    if any(run.block is None for run in plan.left):
        name = plan.study.name
        raise UserError(f"--blocks needs `order: interleaved` in study {name}: its runs have no blocks")
    blocks = {run.block for run, state in plan.runs if run.block and not _is_settled(state)}
    unfinished = sorted(blocks)[:count]
    chosen = [run for run in plan.left if run.block in unfinished]
    numbers = ", ".join(map(str, sorted({run.block or 0 for run in chosen})))
    what = f"{counted(len(chosen), 'run')} of block {numbers}" if chosen else "no run"
    say(f"--blocks: {what} to start; {counted(len(plan.left) - len(chosen), 'run')} left for later")
    now = {run.run_id for run in chosen}
    later = [(run, state) for run, state in plan.runs if state is None and run.run_id not in now]
    return replace(_with_runs(plan, now), later=later)


def _is_settled(state: RunState | None) -> bool:
    """Whether a run is done, or would end as it did if it started again."""
    outcome = state and state.outcome
    return bool(state and (state.done or (outcome and not outcome.may_come_back and not outcome.of_machine)))


def _with_runs(plan: Plan, run_ids: set[str]) -> Plan:
    return replace(plan, runs=[(run, state) for run, state in plan.runs if run.run_id in run_ids])


def run_until_precise(whole: Plan, design: Design, wait: bool | None, fail_fast: bool) -> int:
    """Run the first round, then one more repeat at a time until every comparison is precise enough.

    Args:
        whole: all repeats that `until` allows.
        wait, fail_fast: as `run` takes them.

    Returns:
        The exit code.
    """
    this_round = first_round(whole, design)
    if start_detached(this_round, wait):
        return 0
    waits = whole.cluster.profile.executor == "local" or bool(wait)
    number = first = max(run.repeat for run, _ in this_round.runs)
    so_far = _with_runs(whole, set())  # the runs of all rounds

    def say_others(count: int) -> None:
        say(f"until: waiting for {counted(count, 'run')} that another launch has started")

    try:
        while True:
            # A round: start what is left of it, and wait if this launch does.
            had_ended = False
            if not waits:
                reconciled(this_round.root, this_round.study.name)
                states = [state for _, state in refreshed(this_round).runs]
                had_ended = all(state and state.phase == "ended" for state in states)
            over = had_ended or run(this_round, wait, fail_fast)
            if waits:  # otherwise the runs of another launch would look missing
                wait_for_others(this_round, say_others)
            so_far = _with_runs(whole, {run.run_id for plan in (so_far, this_round) for run, _ in plan.runs})
            if not over:
                say("until: launch again once these runs have ended, to continue from there")
                return 0

            # The last one, if no group is to be repeated, or some run was not even started because another
            # one ended unexpectedly.
            groups = _groups_to_repeat(so_far, design, number)
            states = [state for _, state in refreshed(this_round).runs] if groups and waits else []
            if not groups or any(state is None or state.phase == "planned" for state in states):
                return summary(so_far)

            # The next one: a repeat of these groups. Without waiting, failed runs did not hold it up: they
            # start again with it.
            chosen = set() if waits else {run.run_id for run in refreshed(so_far).left}
            number += 1
            chosen |= {run.run_id for run, _ in whole.runs if run.repeat == number and run.group in groups}
            this_round = _with_runs(whole, chosen)
    except InvalidFile as error:
        if number == first:
            raise
        say(f"until: repeat {number} was not started: {error}")
        return summary(so_far)


def _groups_to_repeat(so_far: Plan, design: Design, number: int) -> set[str]:
    """Say how precise each comparison is; returns the groups to repeat, or none if this is the end.

    A group without any completed pair with its baseline is left out: it might never become precise.

    Args:
        so_far: the runs up to this repeat.
    """
    from analysis.stats.repeats import look
    from analysis.wording import look as look_in_words
    from runner.execute.reconcile import collected

    root, study, until = so_far.root, so_far.study.name, design.until
    assert until
    collected(root, study)
    runs, seconds = [run for run, _ in so_far.runs], seconds_per_token(root, study)
    compared = comparisons(runs, design.baseline or {}, seconds)
    looks = [
        (group, look(group.pairs, until.tokens_per_second, until.at_most, group.seeds)) for group in compared
    ]
    say(f"until: after repeat {number} of at most {until.at_most}")
    for group, precision in looks:
        sentence = look_in_words(precision) if group.pairs else "no completed pair with the baseline"
        say(f"  {group.label}: {sentence}")
    if number < until.at_most and any(group.pairs and not precision.reached for group, precision in looks):
        return {name for group in compared if group.pairs for name in (group.group, group.base)}
    missed = [group.label for group, precision in looks if not precision.reached]
    target = f"within {100 * until.tokens_per_second:.3g} %"
    if not compared:
        alone = "no group differs from its baseline in the baseline's factors alone"
        say(f"until: {alone}, so nothing can be compared")
    elif missed:
        say(f"until: not {target}: {', '.join(missed)}")
    else:
        say(f"until: the interval of every group is {target} of its ratio")
    return set()
