"""The topics of a report's setup table: what the runs have in common, and where they differ. Pure."""
