"""Judges the copies that a run took of its attention calls, and records the findings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from model.record.audits import AuditRecord
from model.record.errors import AuditFailed
from model.record.files import append

if TYPE_CHECKING:
    from model.attention.verify.audited import Taken


def judged(attempt: Path, taken: Taken) -> None:
    """Judge one call.

    Raises:
        AuditFailed: the backend is wrong.
    """
    from model.attention.verify.accuracy import judge

    if record := judge(taken):
        kept(attempt, record)
        if not record.passed:
            raise AuditFailed(f"attention is wrong in {record.where}: {record.reason}")


def kept(attempt: Path, record: AuditRecord) -> None:
    """Record what was found about one call."""
    append(attempt / "audits.jsonl", record, sync=True)
