"""Whether the steps that were profiled, after the last one of a run, are like those that were timed."""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter

from analysis.findings.groups import Row
from analysis.stats import by_label, middle

UNLIKE = 10.0  # percent more or less than the timed step, from which a profile says nothing of that

# A row for each completed run and phase that was profiled.
PROFILED = """\
SELECT r.label, r.run_id, p.phase, sum(p.seconds) AS seconds,
  any_value(if(p.phase = 'decode', r.decode_seconds, r.step_seconds)) AS timed_seconds
FROM runs r
JOIN step_profile p ON p.study = r.study AND p.run_id = r.run_id AND p.attempt = r.measured_attempt
WHERE r.study = $study AND r.outcome = 'completed'
GROUP BY r.label, r.run_id, r.place, p.phase
ORDER BY r.place, r.run_id, p.phase"""


def unlike(rows: Iterable[Row]) -> dict[str, float]:
    """By label, how much longer the group's median profiled step took than its run's timed ones, in percent.

    Below zero where it was shorter.

    Args:
        rows: of one phase, as PROFILED gives them. The median run is the one that the figure shows.

    Returns:
        Of groups beyond UNLIKE alone.
    """
    found = {}
    for label, mine in by_label(rows).items():
        row = middle(mine, itemgetter("seconds"))
        more = 100 * (row["seconds"] / row["timed_seconds"] - 1) if row["timed_seconds"] else 0.0
        if abs(more) > UNLIKE:
            found[label] = more
    return found
