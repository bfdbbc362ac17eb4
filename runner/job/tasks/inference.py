"""Reads prompts and decodes; before that it measures ceilings, and after it a profile.

There is no checkpoint: a run that is restarted starts over.
"""

from __future__ import annotations

from functools import partial

from model.record.files import append
from model.record.folder import DECODED
from model.record.records import DecodeRecord, StepRecord
from runner.job.tasks import Afterwards, RepeatRow, TaskContext, TaskSpec
from runner.job.tasks._around import judge_call, note_ceilings, profile_steps
from runner.state.ledger import RunState


def run(context: TaskContext) -> Afterwards:
    """Prefill to the last step, and decode once; afterwards, profile a few more of both."""
    from model.inference.infer import infer

    def report(record: StepRecord) -> None:
        append(context.attempt / "steps.jsonl", record)
        context.progress.steps = record.step

    def decoded(records: list[DecodeRecord]) -> None:
        for record in records:
            append(context.attempt / DECODED, record)

    note_ceilings(context)
    judge = partial(judge_call, context.attempt)
    done = infer(context.run.config, context.text, report, decoded, context.stop.requested, judge)
    return partial(profile_steps, done, context.progress.manifest, context.attempt)


def compared(original: RunState, repeat: RunState) -> tuple[list[RepeatRow], str]:
    """The decoded tokens, which follow from all logits before them."""
    before, after = (
        [record.token_ids for record in state.latest.decoded] if state.latest else []
        for state in (original, repeat)
    )
    rows = [RepeatRow.of("decoded positions", len(before), len(after))]
    if not before or not after:
        return rows, "no decoded tokens to compare"
    both = min(len(before), len(after))
    unequal = [place for place, (a, b) in enumerate(zip(before, after, strict=False)) if a != b]
    if not unequal:
        return rows, f"the tokens of {both} decoded positions are the same"
    return (
        rows,
        f"the tokens of {len(unequal)} of {both} decoded positions differ, from number {unequal[0] + 1} on",
    )


task = TaskSpec(imports=("model.inference.infer",), run=run, compared=compared, profiles=True)
