"""Compares the runs of a study: ratios, ranking, losses, drift. Pure: rows in, verdicts out."""
