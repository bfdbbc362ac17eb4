"""The figures of a report, each with a caption of its runs and conditions, and the table of shapes."""
