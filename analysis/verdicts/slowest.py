"""Which process of a run the others waited for, by the time that each spent on its own work.

Of equally fast processes, each is slowest now and then; of two, one of them is so in most intervals.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from analysis.verdicts.values import Row
from model.record.records import StepRecord

_MATTERS = 5.0  # percent above the median of the others, from which a process holds up its run
_LEVEL = 0.01  # at which chance is ruled out


def holds_up(run: Row) -> bool:
    """Whether one process was the slowest in more than half of the intervals, not by chance, and by enough.

    Chance is that any of the run's processes is as often the slowest, if they are equally fast (binomial).
    """
    often, intervals, processes = (
        run[key] for key in ("slowest_rank_records", "ranked_records", "processes")
    )
    if run["slowest_rank"] is None or run["slowest_rank_percentage"] is None or 2 * often <= intervals:
        return False
    from scipy.special import bdtrc

    chance = processes * bdtrc(often - 1, intervals, 1 / processes)
    return bool(chance < _LEVEL and run["slowest_rank_percentage"] >= _MATTERS)


def in_records(records: Sequence[StepRecord], nodes: Sequence[str]) -> Row:
    """What `runs` has of it, of step records that are not collected yet.

    Args:
        nodes: of the processes, by rank.
    """
    ratios: dict[int, list[float]] = {}
    for record in records:
        if record.slowest_rank is not None and record.slowest_rank_seconds and record.other_ranks_seconds:
            ratio = record.slowest_rank_seconds / record.other_ranks_seconds
            ratios.setdefault(record.slowest_rank, []).append(ratio)
    rank = max(sorted(ratios), key=lambda rank: len(ratios[rank]), default=None)
    if rank is None:
        return {"slowest_rank": None}
    return {
        "slowest_rank": rank,
        "slowest_rank_node": nodes[rank],
        "slowest_rank_records": len(ratios[rank]),
        "ranked_records": sum(map(len, ratios.values())),
        "slowest_rank_percentage": 100 * (median(ratios[rank]) - 1),
    }


def slowest(run: Row) -> str | None:
    """`rank 3 on n2 was slowest in 41 of 50 intervals, by 12 % of the median of the others`.

    None: the run has one process, or it is not known.
    """
    if run["slowest_rank"] is None:
        return None
    node = run["slowest_rank_node"]
    where = f"rank {run['slowest_rank']} on {node}" if node else f"rank {run['slowest_rank']}"
    text = f"{where} was slowest in {run['slowest_rank_records']} of {run['ranked_records']} intervals"
    more = run["slowest_rank_percentage"]
    return text if more is None else f"{text}, by {more:.2g} % of the median of the others"
