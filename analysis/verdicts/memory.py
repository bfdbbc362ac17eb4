"""The peak memory of a group's runs, with its interval: one rule for figures, tables and write-ups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from analysis.stats import Estimate, over_runs


def peak_memory_gib(runs: Sequence[dict[str, Any]]) -> Estimate | None:
    """The median over the runs that have a reading; None if none has."""
    known = [run["peak_memory_bytes"] / 2**30 for run in runs if run["peak_memory_bytes"]]
    return over_runs(known) if known else None
