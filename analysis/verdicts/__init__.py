"""Compares runs, and sets of them: ratios, rankings, losses, drift, what may be compared."""
