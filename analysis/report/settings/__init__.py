"""The topics of a report's setup table, each read from the runs and said where runs differ. Pure."""
