"""The figures of a report: each chart drawn and numbered, with a caption of its runs and conditions."""
