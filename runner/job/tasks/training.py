"""Trains: steps, audits and checkpoints, between ceilings that are measured before and a profile after."""

from __future__ import annotations

from functools import partial

from model.disk.files import append
from model.disk.record import StepRecord
from runner.job import ceilings, profile
from runner.job.audits import judged
from runner.job.tasks import Afterwards, Given, Work


def run(given: Given) -> Afterwards:
    """Train to the last step; afterwards, profile a few more."""
    from model.keeper import Checkpoints
    from model.trainer import train

    plan, manifest, attempt = given.run, given.progress.manifest, given.attempt
    given.note(**vars(ceilings.known(plan.config, manifest, given.folder.path.parent, given.options)))
    resumed = manifest.resumed_attempt
    checkpoints = Checkpoints(
        folder=attempt,
        every_seconds=plan.checkpoint_seconds,
        should_stop=given.stop.requested,
        resume_from=given.folder.attempt(resumed).path if resumed else None,
    )
    report, judge = partial(_report, given), partial(judged, attempt)
    trained = train(plan.config, given.text, report, checkpoints, judge)
    return partial(profile.keep, trained, given.progress.manifest, attempt)


def _report(given: Given, record: StepRecord) -> None:
    append(given.attempt / "steps.jsonl", record, sync=True)  # on disk before a later checkpoint
    given.progress.steps, given.progress.loss = record.step, record.loss


work = Work(imports=("model.keeper", "model.trainer"), run=run)
