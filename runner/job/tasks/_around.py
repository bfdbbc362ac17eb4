"""What training and inference share: the ceilings before, audits in between, and a profile afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from model import attention
from model.record.errors import AuditFailed
from model.record.files import append, write
from model.record.folder import PROFILE
from model.record.records import AuditRecord, Manifest
from model.record.speed import StepProfile
from model.record.units import say
from runner.job import ceilings
from runner.job.tasks import TaskContext

if TYPE_CHECKING:
    from model.attention.verify.audited import Taken
    from model.training.profile import Done


def note_ceilings(context: TaskContext) -> None:
    """Note what the device can do, measured unless an attempt of the study has; where records are kept."""
    if not context.records:
        return
    run, study = context.run, context.folder.path.parent
    manifest, options = context.progress.manifest, context.options
    facts = ceilings.known_ceilings(run.config, manifest, study, options, run.memory_bytes)
    context.note(**vars(facts))


def keep_audit(attempt: Path, record: AuditRecord) -> None:
    """Record what was found about one call."""
    append(attempt / "audits.jsonl", record, sync=True)


def judge_call(attempt: Path, taken: Taken) -> None:
    """Judge the copy that a run took of one attention call, and record the finding.

    Raises:
        AuditFailed: the backend is wrong.
    """
    from model.attention.verify.accuracy import judge

    if record := judge(taken):
        keep_audit(attempt, record)
        if not record.passed:
            raise AuditFailed(f"attention is wrong in {record.where}: {record.reason}")


def profile_steps(done: Done, manifest: Manifest, attempt: Path | None) -> None:
    """Do a few more steps under the profiler. The run is over: errors here do not change its outcome.

    Args:
        attempt: None in processes of the run that write nothing.
    """
    from model.training.profile import profiled

    run_id, number = manifest.run_id, manifest.attempt
    kernels = attention.load(done.config.attention).launches.on(done.config.device)
    try:
        profile = profiled(done, run_id, number, kernels)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        say(f"the step could not be profiled: {reason}")
        profile = StepProfile(run_id=run_id, attempt=number, steps=0, reason=reason)
    try:
        if attempt:
            write(attempt / PROFILE, profile)
    except OSError as error:
        say(f"the profile of the step could not be written: {error}")
