"""Trains with audits and checkpoints; before that it measures ceilings, and after it a profile."""

from __future__ import annotations

from functools import partial

from model.record.files import append, read_lines, to_disk
from model.record.records import StepRecord
from runner.job.tasks import Afterwards, RepeatRow, TaskContext, TaskSpec
from runner.job.tasks._around import keep_audit, note_ceilings, profile_steps
from runner.state.ledger import RunState


def run(context: TaskContext) -> Afterwards:
    """Train to the last step; afterwards, profile a few more."""
    from model.attention.verify.accuracy import judge
    from model.training.keeper import Checkpoints
    from model.training.trainer import train

    plan, progress, attempt = context.run, context.progress, context.attempt
    records = attempt / "steps.jsonl"

    def report(record: StepRecord) -> None:
        append(records, record)  # to force each to disk would hold up training
        progress.steps, progress.loss = record.step, record.loss
        progress.memory_bytes = record.memory_bytes

    note_ceilings(context)
    world = context.meet()
    resumed = progress.manifest.resumed_attempt
    context.stop.steps = progress.manifest.resumed_step or 0
    checkpoints = Checkpoints(
        folder=attempt,
        every_seconds=plan.checkpoint_seconds,
        should_stop=context.stop.requested,
        resume_from=context.folder.attempt(resumed).path if resumed else None,
        before=partial(to_disk, records),
    )
    audited = partial(keep_audit, attempt)
    trained = train(plan.config, context.text, report, checkpoints, judge, audited, world)
    if world.is_first:
        to_disk(records)
    return partial(profile_steps, trained, progress.manifest, attempt if context.records else None)


def compared(original: RunState, repeat: RunState) -> tuple[list[RepeatRow], str]:
    """The losses of the steps that both have."""
    before, after = _steps(original), _steps(repeat)
    both = sorted(before.keys() & after.keys())
    rows = [RepeatRow.of("step records", len(before), len(after))]
    if not both:
        return rows, "no steps to compare"
    last = both[-1]
    rows.append(RepeatRow.of(f"loss at step {last}", _in_words(before[last]), _in_words(after[last])))
    unequal = [step for step in both if before[step].loss != after[step].loss]
    if not unequal:
        return rows, f"the losses of {len(both)} steps are bit-identical"
    worst = max(unequal, key=lambda step: _difference(before[step].loss, after[step].loss))
    difference = f"{_difference(before[worst].loss, after[worst].loss):.2g}"
    losses = _in_words(before[worst]), _in_words(after[worst])
    rows.append(RepeatRow(f"largest loss difference, step {worst}", *losses, difference))
    return rows, f"{len(unequal)} of {len(both)} losses differ, by at most {difference}"


def _steps(state: RunState) -> dict[int, StepRecord]:
    """Step records of all attempts by step; where attempts overlap, the later one wins."""
    attempts = (attempt for attempt in state.folder.attempts() if attempt.number <= state.attempt)
    files = (attempt.path / "steps.jsonl" for attempt in attempts)
    return {record.step: record for file in files for record in read_lines(file, StepRecord)}


def _in_words(record: StepRecord) -> str:
    return "not finite" if record.loss is None else str(record.loss)


def _difference(before: float | None, after: float | None) -> float:
    """Absolute difference; infinite if either loss is not finite."""
    return float("inf") if before is None or after is None else abs(before - after)


task = TaskSpec(
    imports=("model.training.keeper", "model.training.trainer"),
    run=run,
    compared=compared,
    resumes=True,
    profiles=True,
)
