"""Has what a run copied of its attention calls judged, and writes down what was found."""

from __future__ import annotations

from pathlib import Path

from model.audit import Taken
from model.disk.audits import AuditRecord
from model.disk.files import append
from model.errors import AuditFailed


def judged(attempt: Path, taken: Taken) -> None:
    """Judge one call.

    Raises:
        AuditFailed: the backend is wrong.
    """
    from model.verify.right import judge

    if record := judge(taken):
        kept(attempt, record)
        if not record.passed:
            raise AuditFailed(f"attention is wrong in {record.where}: {record.reason}")


def kept(attempt: Path, record: AuditRecord) -> None:
    """Write down what was found of one call."""
    append(attempt / "audits.jsonl", record, sync=True)
