"""Reads prompts and decodes; before that it measures ceilings, and after it a profile.

There is no checkpoint: a run that is restarted starts over.
"""

from __future__ import annotations

from functools import partial

from model.record.files import append
from model.record.folder import DECODED
from model.record.records import DecodeRecord, StepRecord
from runner.job import profile
from runner.job.tasks import Afterwards, Given, Work
from runner.job.tasks._audits import judged
from runner.job.tasks._ceilings import noted
from runner.job.tasks._compared import Row, row
from runner.state.ledger import RunState


def run(given: Given) -> Afterwards:
    """Prefill to the last step, and decode once; afterwards, profile a few more of both."""
    from model.inference.infer import infer

    noted(given)
    report, decoded = partial(_report, given), partial(_decoded, given)
    judge = partial(judged, given.attempt)
    done = infer(given.run.config, given.text, report, decoded, given.stop.requested, judge)
    return partial(profile.keep, done, given.progress.manifest, given.attempt)


def _report(given: Given, record: StepRecord) -> None:
    append(given.attempt / "steps.jsonl", record)
    given.progress.steps = record.step


def _decoded(given: Given, records: list[DecodeRecord]) -> None:
    for record in records:
        append(given.attempt / DECODED, record)


def compared(then: RunState, now: RunState) -> tuple[list[Row], str]:
    """The decoded tokens, which follow from all logits before them."""
    before, after = ([each.token_ids for each in _decoded_by(state)] for state in (then, now))
    rows = [row("decoded positions", len(before), len(after))]
    if not before or not after:
        return rows, "no decoded tokens to compare"
    unequal = [place for place, (a, b) in enumerate(zip(before, after, strict=False)) if a != b]
    both = min(len(before), len(after))
    if not unequal:
        return rows, f"the tokens of {both} decoded positions are the same"
    return (
        rows,
        f"the tokens of {len(unequal)} of {both} decoded positions differ, from number {unequal[0] + 1} on",
    )


def _decoded_by(state: RunState) -> list[DecodeRecord]:
    return state.latest.decoded if state.latest else []


work = Work(imports=("model.inference.infer",), run=run, compared=compared, profiles=True)
