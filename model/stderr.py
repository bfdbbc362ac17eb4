"""What a run says beside its records, which must not be what ends it."""

from __future__ import annotations

import sys
from contextlib import suppress


def say(text: str) -> None:
    """Write a line to stderr. Where that is closed, or a file on a full disk, nobody hears it."""
    if sys.stderr is not None:  # Python's word for a descriptor that was closed when it started
        with suppress(OSError, ValueError):
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()
