"""Packs a study for others: its tables with a data dictionary, and its run folders as an archive."""
