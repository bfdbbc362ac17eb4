"""What was run, setting by setting: one table for the overview, the methods and a write-up. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from analysis.report.settings import calls, conditions, design, training
from analysis.report.settings.values import Setting

if TYPE_CHECKING:
    from analysis.report.comparison import StudyComparison
    from analysis.report.facts import Facts

__all__ = ["Setting", "setup"]


def setup(facts: Facts, comparison: StudyComparison) -> list[Setting]:
    """Every topic, in the order of the table."""
    return [
        *(training.settings(facts.runs, facts.infers) if not facts.calls else calls.settings(facts.runs)),
        *design.settings(facts, comparison),
        *conditions.settings(facts, comparison),
    ]
