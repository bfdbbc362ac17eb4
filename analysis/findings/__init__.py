"""What the runs of a study say of each other: ratios, ranking, losses, drift. Pure: rows in, verdicts out."""
