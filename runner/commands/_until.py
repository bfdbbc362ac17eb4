"""Adds repeats to a study until its comparisons with the baseline are precise enough (`until:`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from model.record.records import Outcome, RunRecord
from model.record.units import counted
from runner.commands._console import say
from runner.commands._start import detached, run, summary
from runner.execute.reconcile import reconciled
from runner.execute.wait import wait_for_others
from runner.inputs.cells.cell import Cell
from runner.inputs.design import Design, Until
from runner.inputs.problems import InvalidFile
from runner.plan.plan import Plan, refreshed
from runner.plan.precision import comparisons, seconds_per_token


def worth_repeating(cells: Sequence[Cell], design: Design) -> list[Cell]:
    """The cells, without repeats that only `until` adds to cells that are not expected to complete."""
    return [cell for cell in cells if cell.repeat <= design.repeats or cell.expected is Outcome.COMPLETED]


def begun(whole: Plan, design: Design) -> Plan:
    """The part of a plan that a launch starts with: the study's repeats, and those of earlier launches."""
    number = max([design.repeats, *(each.repeat for each, state in whole.runs if state)])
    return _part(whole, lambda each: each.repeat <= number)


def pursue(whole: Plan, design: Design, wait: bool | None, fail_fast: bool) -> int:
    """Run what `begun` has, then one more repeat at a time until every comparison is precise enough.

    Args:
        whole: all repeats that `until` allows.
        wait, fail_fast: as `run` takes them.

    Returns:
        The exit code.
    """
    now = begun(whole, design)
    return 0 if detached(now, wait) else _Pursuit(whole, design, wait, fail_fast).go(now)


class _Pursuit:
    """The rounds of one launch; `number` is the repeat that the round is about."""

    def __init__(self, whole: Plan, design: Design, wait: bool | None, fail_fast: bool) -> None:
        assert design.until
        self.whole, self.design, self.until = whole, design, design.until
        self.fail_fast, self.wait = fail_fast, wait
        self.waits = whole.cluster.profile.executor == "local" or bool(wait)
        self.number = 0
        self.asked = set[str]()  # ids of the runs of all rounds so far

    def go(self, now: Plan) -> int:
        self.number = first = max(each.repeat for each, _ in now.runs)
        try:
            while self.over(now):
                groups = self.undecided()
                if not groups or (self.waits and self.unstarted(now)):
                    return summary(self.so_far())
                now = self.next(groups)
        except InvalidFile as error:
            if self.number == first:
                raise
            say(f"until: repeat {self.number} was not started: {error}")
            return summary(self.so_far())
        say("until: launch again once these runs have ended, to continue from there")
        return 0

    def over(self, now: Plan) -> bool:
        """Start what is left, and wait for it if this launch waits; returns whether all have ended.

        If it does not wait, failed runs do not hold up the next round: they start again with it.
        """
        ended = False
        if not self.waits:
            reconciled(now.root, now.study.name)
            ended = all(state and state.phase == "ended" for _, state in refreshed(now).runs)
        over = ended or run(now, self.wait, self.fail_fast)
        if self.waits:
            _wait_for_others(now)
        self.asked |= {each.run_id for each, _ in now.runs}
        return over

    def unstarted(self, now: Plan) -> bool:
        """Whether some run was not even started, because another one ended unexpectedly."""
        return any(state is None or state.phase == "planned" for _, state in refreshed(now).runs)

    def undecided(self) -> set[str]:
        """Say how precise each comparison is; returns the groups to repeat, or none if this is the end.

        A group without any completed pair with its baseline is left out: it might never become precise.
        """
        from analysis.stats.repeats import look
        from analysis.wording import look as look_in_words
        from runner.execute.collected import collected

        root, study, until = self.whole.root, self.whole.study.name, self.until
        collected(root, study)
        found = comparisons(
            [each for each, _ in self.so_far().runs],
            self.design.baseline or {},
            seconds_per_token(root, study),
        )
        looks = [
            (each, look(each.pairs, until.tokens_per_second, until.at_most, each.seeds)) for each in found
        ]
        say(f"until: after repeat {self.number} of at most {until.at_most}")
        for each, seen in looks:
            state = look_in_words(seen) if each.pairs else "no completed pair with the baseline"
            say(f"  {each.label}: {state}")
        open_ = [each for each, seen in looks if each.pairs and not seen.reached]
        if open_ and self.number < until.at_most:
            return {group for each in found if each.pairs for group in (each.group, each.base)}
        missed = [each.label for each, seen in looks if not seen.reached]
        say(f"until: {_conclusion(until, bool(found), missed)}")
        return set()

    def next(self, groups: set[str]) -> Plan:
        """The next repeat of these groups; if this launch does not wait, also the runs that failed."""
        failed = set() if self.waits else {each.run_id for each in refreshed(self.so_far()).left}
        self.number += 1
        number = self.number
        return _part(
            self.whole,
            lambda each: (each.repeat == number and each.group in groups) or each.run_id in failed,
        )

    def so_far(self) -> Plan:
        """The runs of all rounds."""
        return _part(self.whole, lambda each: each.run_id in self.asked)


def _wait_for_others(plan: Plan) -> None:
    """Wait for runs of a plan that another launch has started: otherwise they would look missing."""
    wait_for_others(
        plan,
        lambda count: say(f"until: waiting for {counted(count, 'run')} that another launch has started"),
    )


def _conclusion(until: Until, compared: bool, missed: list[str]) -> str:
    if not compared:
        return (
            "no group differs from its baseline in the baseline's factors alone, so nothing can be compared"
        )
    target = f"within {100 * until.tokens_per_second:.3g} %"
    if missed:
        return f"not {target}: {', '.join(missed)}"
    return f"the interval of every group is {target} of its ratio"


def _part(plan: Plan, wanted: Callable[[RunRecord], bool]) -> Plan:
    return replace(plan, runs=[(each, state) for each, state in plan.runs if wanted(each)])
