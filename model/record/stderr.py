"""Prints messages of a run; a failure to print must never end the run."""

from __future__ import annotations

import sys
from contextlib import suppress


def say(text: str) -> None:
    """Write a line to stderr. If that is closed, or a file on a full disk, the line is lost."""
    if sys.stderr is not None:  # Python's word for a descriptor that was closed when it started
        with suppress(OSError, ValueError):
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()
