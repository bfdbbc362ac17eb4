"""Writes a plan's runs to their folders, and returns a task for each run's next attempt."""

from __future__ import annotations

from model.record.config import ParallelConfig
from model.record.errors import UserError
from model.record.files import write_text
from model.record.folder import RunFolder
from model.record.records import DesignRecord, RunRecord
from runner.plan import edits
from runner.plan.plan import Plan
from runner.state import ledger
from runner.state.attempts import JobShape, NextAttempt, label
from runner.state.code import provenance
from runner.state.ledger import RunState


def write_runs(plan: Plan) -> list[NextAttempt]:
    """Write run.json where it is new or changed; return the next attempts of the runs to do, not yet claimed.

    They are in the order of starting.

    Raises:
        UserError: the root is not writable.
    """
    left = {run.run_id for run in plan.left}
    if left:
        provenance.keep(plan.study.path.resolve().parent, plan.root / plan.study.name)
    attempts = []
    for run, state in plan.runs:
        folder = plan.folder(run)
        record = run if state is None else _updated(run, state, run.run_id in left)
        try:
            if state is None or record != state.run:
                folder.path.mkdir(parents=True, exist_ok=True)
                # Omit keys that an older record lacks: the older code that the run executes rejects them.
                text = record.model_dump_json(exclude_unset=True, indent=1)
                write_text(folder.path / "run.json", text + "\n", sync=False)
        except OSError as error:
            raise UserError(f"{folder.path}: {error.strerror}; choose another place with --root") from error
        if run.run_id in left:
            attempts.append(next_attempt(folder, record, state, plan.parallel(run)))
    if plan.record:
        edits.keep(plan.record, plan.root)
    if attempts:
        ledger.flush(plan.root)
    return sorted(attempts, key=lambda attempt: attempt.position)


# Fields of an already planned run that a study or profile may still change: its limits and descriptions.
_ABOUT = (
    *("expected_outcome", "because", "label", "title", "description", "scale_description"),
    *("overridden", "factors", "why"),
)
_LIMITS = (
    "profile",
    "profile_file",
    "memory_bytes",
    "memory_source",
    "time_limit_seconds",
    "cpus",
    "checkpoint_seconds",
    "grace_seconds",
    "requeue",
)


def _updated(run: RunRecord, state: RunState, starts: bool) -> RunRecord:
    """Update a planned run: in full if it starts without a checkpoint, otherwise only the fields above."""
    saved = any((attempt.path / "checkpoint").exists() for attempt in state.folder.attempts())
    if starts and not saved:
        return run.model_copy(update={"created_at": state.run.created_at})
    names = (*_ABOUT, *(_LIMITS if starts else ()))
    known = state.run.model_fields_set
    now = {name: getattr(run, name) for name in names if name in known}
    return state.run.model_copy(update=now | _redesigned(run.design, state.run.design))


def _redesigned(now: DesignRecord | None, before: DesignRecord | None) -> dict[str, DesignRecord]:
    """The design of a run that has started. It keeps its margins: those stated after results prove nothing.

    If `until` was removed from the study, its earlier looks at the results still count.
    """
    if now is None or before is None:
        return {}
    changes = {"baseline": now.baseline, "until": now.until or before.until}
    return {"design": before.model_copy(update=changes)}


def next_attempt(
    folder: RunFolder, run: RunRecord, state: RunState | None, parallel: ParallelConfig | None = None
) -> NextAttempt:
    """The attempt after the last one in a run's status.

    Args:
        parallel: the attempt's processes in place of the run's own.
    """
    return NextAttempt(
        folder=folder,
        number=(state.highest if state else 0) + 1,
        label=label(run),
        steps=run.config.section.steps,
        shape=JobShape.of(run.on(parallel)),
        code=run.provenance.code,
        expected=run.expected_outcome,
        position=run.position or 0,
        parallel=parallel,
    )
