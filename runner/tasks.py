"""What an executor is given."""

from __future__ import annotations

from dataclasses import dataclass

from model.record import RunFolder


@dataclass(frozen=True)
class Task:
    """One claimed attempt of one run."""

    folder: RunFolder
    attempt: int
    label: str
    steps: int
    code: str | None = None  # hash of the snapshot that it runs, None: what is installed
