"""Locks on open files. The kernel, or an NFS mount's server, releases the lock of a process that dies."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable


def hold(
    descriptor: int,
    wait_seconds: float | None = None,
    poll_seconds: float = 0.1,
    waiting: Callable[[], None] = lambda: None,
) -> bool:
    """Take a file's lock; returns whether it could be had in time. Closing the descriptor releases it.

    Args:
        wait_seconds: how long to try again while another process holds it; None: until it is free.
        waiting: called once, if another process holds it.

    Raises:
        OSError: the filesystem has no locks.
    """
    if _taken(descriptor):
        return True
    waiting()
    if wait_seconds is None:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        return True
    until = time.monotonic() + wait_seconds
    while time.monotonic() <= until:
        time.sleep(poll_seconds)
        if _taken(descriptor):
            return True
    return False


def _taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
