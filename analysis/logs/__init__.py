"""Logs of other programs: read by a mapping, checked, and written as run folders. No format is known here."""
