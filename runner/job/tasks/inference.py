"""Reads prompts and decodes after them. There is no checkpoint: who starts again starts over."""

from __future__ import annotations

from functools import partial

from model.disk.files import append
from model.disk.folder import DECODED
from model.disk.record import DecodeRecord, StepRecord
from runner.job.audits import judged
from runner.job.tasks import Given, Work


def run(given: Given) -> None:
    """Prefill to the last step, and decode once."""
    from model.inference.infer import infer

    report, decoded = partial(_report, given), partial(_decoded, given)
    judge = partial(judged, given.attempt)
    infer(given.run.config, given.text, report, decoded, given.stop.requested, judge)


def _report(given: Given, record: StepRecord) -> None:
    append(given.attempt / "steps.jsonl", record)
    given.progress.steps = record.step


def _decoded(given: Given, records: list[DecodeRecord]) -> None:
    for record in records:
        append(given.attempt / DECODED, record)


work = Work(imports=("model.inference.infer",), run=run)
