"""Statistics, pure: intervals, paired ratios, rankings and verdicts. Nothing here reads a file or a database.

One idea a file: `within` (one run's records), `between` (runs), `paired` (ratios to a baseline), `ranking`,
`equivalence` (losses), `change` (two studies), `drift`, `devices`, `power` and `sequential` (how many
repeats). What each method assumes, and how often its intervals hold the truth, is in docs/statistics.md.
"""

from analysis.stats.between import over_runs
from analysis.stats.estimate import Estimate
from analysis.stats.rows import Quantity, by_label, estimates, grouped, methods, middle, rate
from analysis.stats.within import within_run

__all__ = [
    "Estimate",
    "Quantity",
    "by_label",
    "estimates",
    "grouped",
    "methods",
    "middle",
    "over_runs",
    "rate",
    "within_run",
]
