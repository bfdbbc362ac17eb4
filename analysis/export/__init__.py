"""A study as files for others: its tables with a data dictionary, and its run folders as an archive."""
