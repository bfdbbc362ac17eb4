"""What a study's runs say about each other: ratios, ranking, losses, drift. Pure: rows in, verdicts out."""
