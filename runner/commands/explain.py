"""Explain why a run exists and what happened to it, attempt by attempt."""

from __future__ import annotations

from typing import Any

from analysis.verdicts.slowest import in_records, slowest
from model.record.errors import UserError
from model.record.files import read_lines
from model.record.folder import Attempt
from model.record.outcome import Outcome
from model.record.records import StepRecord
from runner.commands._console import print_json, table
from runner.commands._options import AsJson, RunName, Settings
from runner.execute.reconcile import reconciled, waits_for
from runner.execute.wait import retry_after
from runner.plan.plan import cluster_of
from runner.state.ledger import RunState
from runner.state.runs import find, removed_runs

_PLAN = (
    *("run_id", "study", "factors", "repeat", "position", "block", "why"),
    *("scale", "profile", "expected_outcome", "also_expected", "because"),
)


def command(run: RunName, as_json: AsJson = False) -> None:
    reconciled(Settings.root)
    explanation = explain(find(Settings.root, run))
    if as_json:
        print_json(explanation)
    else:
        show(explanation)


def explain(state: RunState) -> dict[str, Any]:
    """A run's plan, attempts and ledger, as `explain --json` prints them. Raises Unreadable."""
    if state.folder.is_imported:  # which has no plan
        imported = state.folder.imported
        origin = {
            "run_id": imported.run_id,
            "study": imported.study,
            "factors": imported.factors,
            "imported": imported.imported.model_dump(mode="json", exclude={"findings"}),
            "certificate": "none: its attention backend was not verified here",
            "config": imported.config or "unknown",
            "findings": [f"{finding.level}: {finding.sentence}" for finding in imported.imported.findings],
        }
    else:
        gone = removed_runs(state.folder.path.parent.parent, state.run.study).get(state.run.run_id)
        origin = {name: getattr(state.run, name) for name in _PLAN} | {"removed": gone}
    attempts = state.folder.attempts()
    return {
        **origin,
        "phase": state.phase,
        "outcome": state.outcome,
        "reason": state.reason,
        "waits_for": waits_for([state]).get(state.job_id or ""),
        "attempts": [
            _attempt(attempt) | {"retry": _retry(state, attempt, following)}
            for attempt, following in zip(attempts, (*attempts[1:], None), strict=True)
        ],
        "ledger": [
            event.model_dump(mode="json", exclude_none=True, exclude={"schema_version"})
            for event in state.folder.ledger
        ],
        "folder": str(state.folder.path),
    }


def _attempt(attempt: Attempt) -> dict[str, Any]:
    """Where an attempt ran, what it resumed, and how it ended."""
    manifest, result = attempt.manifest, attempt.result
    outcome, reason = attempt.settled or (None, None)
    ranks, steps = manifest and manifest.ranks, attempt.path / "steps.jsonl"
    slowest_rank = None  # of its processes, after the first record; None also if it has only one
    if ranks and steps.exists():
        slowest_rank = slowest(in_records(read_lines(steps, StepRecord)[1:], [rank.node for rank in ranks]))
    return {
        "attempt": attempt.number,
        "job_id": attempt.job_id,
        "host": manifest.host if manifest else None,
        "device": manifest.device_name if manifest else None,
        "started_at": str(manifest.started_at) if manifest else None,
        "resumed": f"attempt {manifest.resumed_attempt}, step {manifest.resumed_step}"
        if manifest and manifest.resumed_attempt
        else None,
        "not_resumed": manifest.not_resumed if manifest else None,
        "parallel": manifest.parallel.model_dump() if manifest and manifest.parallel else None,
        "slowest": slowest_rank,
        "steps": result.steps if result else None,
        "requested_bytes": result.requested_bytes if result else None,
        "peak_memory_bytes": result.peak_memory_bytes if result else None,
        "outcome": outcome,
        "reason": reason,
    }


def _retry(state: RunState, attempt: Attempt, following: Attempt | None) -> str | None:
    """Whether the run was started again after an attempt, and why; None while the attempt is in flight.

    It is decided again here, with today's profile, as the words say: nobody writes it down.
    """
    if attempt.settled is None or state.folder.is_imported:
        return None
    if following and following.executor == "slurm" and not following.event("intent"):  # of a launcher
        return f"its job went on as attempt {following.number}"
    if following is None and state.phase != "ended":
        return "undecided: Slurm may still start its job again"
    by_another = f"; attempt {following.number} was started by another command" if following else ""
    if attempt.executor == "local" and attempt.settled[0] not in (
        Outcome.COMPLETED,
        *state.brief.expected,
    ):
        return f"not retried: `launch --wait` retries runs on Slurm alone{by_another}"
    try:
        retries = cluster_of(state.run).profile.retries
    except UserError:
        if attempt.settled[0].of_machine:
            return f"unknown: the profile {state.run.profile}, which says how often, cannot be read today"
        retries = 0  # nothing else depends on it
    again, why = retry_after(attempt, state, retries)
    if again:
        done = f"retried as attempt {following.number}" if following else "`launch --wait` retries it"
        return f"{done}: {why}"
    return f"not retried: {why}{by_another}"


def show(explanation: dict[str, Any]) -> None:
    """Print an explanation as tables: the run, each attempt, the ledger."""
    own_tables = ("attempts", "ledger", "imported", "findings")
    plain = {name: value for name, value in explanation.items() if name not in own_tables and value}
    table(["", ""], [[name, _text(value)] for name, value in plain.items()])
    if "imported" in explanation:
        source = explanation["imported"].items()
        table(["imported", ""], [[name, _text(value)] for name, value in source if value])
        table(["found in the log"], [[finding] for finding in explanation["findings"] or ["nothing wrong"]])
    for attempt in explanation["attempts"]:
        facts = {name: value for name, value in attempt.items() if value is not None and name != "attempt"}
        table([f"attempt {attempt['attempt']}", ""], [[name, _text(value)] for name, value in facts.items()])
    heads = ("time", "attempt", "event")
    rows = []
    for event in explanation["ledger"]:
        rest = {name: value for name, value in event.items() if name not in heads}
        rows.append([*(str(event[name]) for name in heads), _text(rest)])
    table([*heads, ""], rows)


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}={item}" for name, item in value.items())
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
