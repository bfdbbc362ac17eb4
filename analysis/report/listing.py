"""The table of a study's runs: on the overview or, where it has too many rows for that, on its own pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from analysis.report.runs.pages import MOST

MOST_NAMED = 50  # runs or files that a list under a figure or a table names
_ROWS = 500  # of one page: browsers lay out a table as a whole

Row = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """One page of the table.

    Attributes:
        name: of the page, without `.html`.
        first, last: places of its runs in the study's order, counted from 1.
    """

    name: str
    first: int
    last: int
    runs: Sequence[Row]


def parts(runs: Sequence[Row]) -> list[Part]:
    """The pages of the table; none if the runs are so few that the overview has it."""
    if len(runs) <= MOST:
        return []
    return [
        Part(f"all-runs-{number}", start + 1, min(start + _ROWS, len(runs)), runs[start : start + _ROWS])
        for number, start in enumerate(range(0, len(runs), _ROWS), start=1)
    ]
