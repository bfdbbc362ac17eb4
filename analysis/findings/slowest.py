"""Which process of a run the others waited for, by what each spent itself.

Of equally fast ones each is slowest now and then.
"""

from __future__ import annotations

from analysis.findings.groups import Row

_MATTERS = 5.0  # percent above the median of the others, from which a process holds up its run


def holds_up(run: Row) -> bool:
    """Whether one process was the slowest in more than half of the intervals, by so much that it matters."""
    if run["slowest_rank"] is None or run["slowest_rank_percentage"] is None:
        return False
    return bool(
        2 * run["slowest_rank_records"] > run["ranked_records"] and run["slowest_rank_percentage"] >= _MATTERS
    )


def slowest(run: Row) -> str | None:
    """`rank 3 on n2 was slowest in 41 of 50 intervals, by 12 % of the median of the others`.

    None: the run has one process, or it is not known.
    """
    if run["slowest_rank"] is None:
        return None
    node = run["slowest_rank_node"]
    where = f"rank {run['slowest_rank']} on {node}" if node else f"rank {run['slowest_rank']}"
    said = f"{where} was slowest in {run['slowest_rank_records']} of {run['ranked_records']} intervals"
    more = run["slowest_rank_percentage"]
    return said if more is None else f"{said}, by {more:.2g} % of the median of the others"
