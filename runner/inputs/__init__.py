"""Reads and validates what people write: studies and profiles. Errors are FILE:LINE:COL. It reads no run."""
