"""Whether the steps that were profiled, after the last one of a run, are like those that were timed.

And whether their parts are possible: early profiles counted part of the attention of `custom` as
other work.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from analysis.stats import by_label, middle
from analysis.verdicts.values import Row

UNLIKE = 10.0  # percent more or less than the timed step, from which a profile says nothing of that
_OFF = 0.9  # of its least possible time, which is only as exact as the measured ceilings: less cannot be

R = TypeVar("R", bound=Mapping[str, Any])

# A row for each completed run and phase that was profiled.
PROFILED = """\
SELECT r.label, r.run_id, p.phase, sum(p.seconds) AS seconds,
  any_value(if(p.phase = 'decode', r.decode_seconds, r.step_seconds)) AS timed_seconds,
  sum(p.seconds) FILTER (p.part = 'attention') AS attention,
  sum(f.seconds) FILTER (p.part = 'attention') AS least_attention
FROM runs r
JOIN step_profile p ON p.study = r.study AND p.run_id = r.run_id AND p.attempt = r.measured_attempt
LEFT JOIN step_floor f ON f.study = p.study AND f.run_id = p.run_id AND f.attempt = p.attempt
  AND f.phase = p.phase AND f.part = p.part
WHERE r.study = $study AND r.outcome = 'completed'
GROUP BY r.label, r.run_id, r.place, p.phase
ORDER BY r.place, r.run_id, p.phase"""


def timed_runs(rows: Sequence[R]) -> Sequence[R]:
    """The runs of a group that have timed steps; all of them where none has."""
    return [row for row in rows if row["timed_seconds"]] or rows


def median_run(rows: Sequence[R]) -> R:
    """The run of a group that figures of parts show: that of the median time, as all other figures have it.

    Of two in the middle the shorter.

    Args:
        rows: with timed_seconds, None of a run without timed steps.
    """
    return middle(timed_runs(rows), lambda row: row["timed_seconds"] or 0.0)


def excesses(rows: Iterable[Row]) -> dict[str, float]:
    """By label, how much longer the profiled step of its median run took than the timed ones, in percent.

    Below zero where it was shorter, and zero of a group without timed steps.

    Args:
        rows: of one phase, as PROFILED gives them.
    """
    middles = {label: median_run(group) for label, group in by_label(rows).items()}
    return {
        label: 100 * (row["seconds"] / row["timed_seconds"] - 1) if row["timed_seconds"] else 0.0
        for label, row in middles.items()
    }


def unlike(rows: Iterable[Row]) -> dict[str, float]:
    """The `excesses` of the groups beyond UNLIKE."""
    return {label: percent for label, percent in excesses(rows).items() if abs(percent) > UNLIKE}


def impossible(rows: Iterable[Row]) -> dict[str, tuple[float, float]]:
    """By label, the attention of its median run's profiled step and the least that it could take, in seconds.

    Kernels of attention must then have been counted as other parts. For steps and prefills, whose attention
    computes; the cache that a decoded token reads may be faster than memory.

    Returns:
        Of groups alone whose attention took less than it can, or no time at all.
    """
    middles = {label: median_run(group) for label, group in by_label(rows).items()}
    times = {
        label: (row["attention"], row["least_attention"] or 0.0)
        for label, row in middles.items()
        if row["attention"] is not None
    }
    return {
        label: (took, least) for label, (took, least) in times.items() if took < _OFF * least or took == 0
    }
