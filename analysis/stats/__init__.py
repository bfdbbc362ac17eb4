"""Statistics, pure: intervals, paired ratios, rankings and verdicts. Nothing here reads a file or a database.

One idea a file: `estimate` (medians and their intervals), `paired` (ratios to a baseline), `ranking`,
`equivalence` (rates and losses against a margin), `machines` (drift, devices), and `repeats` (how many it
takes). What each method assumes, and how often its intervals hold the truth, is in docs/statistics.md.
"""

from analysis.stats.estimate import Estimate, over_runs, within_run
from analysis.stats.rows import Quantity, by_label, estimates, grouped, middle, rate

__all__ = [
    "Estimate",
    "Quantity",
    "by_label",
    "estimates",
    "grouped",
    "middle",
    "over_runs",
    "rate",
    "within_run",
]
