"""Trains: steps, audits and checkpoints, between ceilings that are measured before and a profile after."""

from __future__ import annotations

from functools import partial

from model.audit import Taken
from model.disk.files import append
from model.disk.record import StepRecord
from model.errors import AuditFailed
from runner.job import ceilings, profile
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
    report, judged = partial(_report, given), partial(_judged, given)
    trained = train(plan.config, given.text, report, checkpoints, judged)
    return partial(profile.keep, trained, given.progress.manifest, attempt)


def _report(given: Given, record: StepRecord) -> None:
    append(given.attempt / "steps.jsonl", record, sync=True)  # on disk before a later checkpoint
    given.progress.steps, given.progress.loss = record.step, record.loss


def _judged(given: Given, taken: Taken) -> None:
    from model.verify.right import judge

    if record := judge(taken):
        append(given.attempt / "audits.jsonl", record, sync=True)
        if not record.passed:
            raise AuditFailed(f"attention is wrong in {record.where}: {record.reason}")


work = Work(imports=("model.keeper", "model.trainer"), run=run)
