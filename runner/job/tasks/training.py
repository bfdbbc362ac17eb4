"""Trains with audits and checkpoints; before that it measures ceilings, and after it a profile."""

from __future__ import annotations

from functools import partial

from model.record.files import append, read_lines
from model.record.records import StepRecord
from runner.job import profile
from runner.job.tasks import Afterwards, Given, Work
from runner.job.tasks._audits import kept
from runner.job.tasks._ceilings import noted
from runner.job.tasks._compared import Row, row
from runner.state.ledger import RunState


def run(given: Given) -> Afterwards:
    """Train to the last step; afterwards, profile a few more."""
    from model.attention.verify.accuracy import judge
    from model.training.keeper import Checkpoints
    from model.training.trainer import train

    plan = given.run
    noted(given)
    world = given.meet()
    resumed, attempt = given.progress.manifest.resumed_attempt, given.attempt
    given.stop.steps = given.progress.manifest.resumed_step or 0
    checkpoints = Checkpoints(
        folder=attempt,
        every_seconds=plan.checkpoint_seconds,
        should_stop=given.stop.requested,
        resume_from=given.folder.attempt(resumed).path if resumed else None,
    )
    report, audited = partial(_report, given), partial(kept, attempt)
    trained = train(plan.config, given.text, report, checkpoints, judge, audited, world)
    return partial(profile.keep, trained, given.progress.manifest, attempt if given.records else None)


def _report(given: Given, record: StepRecord) -> None:
    append(given.attempt / "steps.jsonl", record, sync=True)  # on disk before a later checkpoint
    given.progress.steps, given.progress.loss = record.step, record.loss
    given.progress.memory_bytes = record.memory_bytes


def compared(before: RunState, after: RunState) -> tuple[list[Row], str]:
    """The losses of the steps that both have."""
    then, now = _steps(before), _steps(after)
    both = sorted(then.keys() & now.keys())
    rows = [row("step records", len(then), len(now))]
    if not both:
        return rows, "no steps to compare"
    rows.append(row(f"loss at step {both[-1]}", _shown(then[both[-1]]), _shown(now[both[-1]])))
    unequal = [step for step in both if then[step].loss != now[step].loss]
    if not unequal:
        return rows, f"the losses of {len(both)} steps are bit-identical"
    worst = max(unequal, key=lambda step: _difference(then[step].loss, now[step].loss))
    difference = _difference(then[worst].loss, now[worst].loss)
    what = f"largest loss difference, step {worst}"
    rows.append([what, _shown(then[worst]), _shown(now[worst]), f"{difference:.2g}"])
    return rows, f"{len(unequal)} of {len(both)} losses differ, by at most {difference:.2g}"


def _steps(state: RunState) -> dict[int, StepRecord]:
    """Step records of all attempts by step; where attempts overlap, the later one wins."""
    attempts = (attempt for attempt in state.folder.attempts() if attempt.number <= state.attempt)
    files = (attempt.path / "steps.jsonl" for attempt in attempts)
    return {record.step: record for file in files for record in read_lines(file, StepRecord)}


def _shown(record: StepRecord) -> str:
    return "not finite" if record.loss is None else str(record.loss)


def _difference(then: float | None, now: float | None) -> float:
    """Absolute difference; infinite if either loss is not finite."""
    return float("inf") if then is None or now is None else abs(then - now)


work = Work(
    imports=("model.training.keeper", "model.training.trainer"),
    run=run,
    compared=compared,
    resumes=True,
    profiles=True,
)
