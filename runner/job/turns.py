"""Runs that need the same certificate, or ceilings, take turns: one makes them, and the others wait.

The lock only saves work: two runs that make a record at once make the same one, and write it whole. If
locks do not work across nodes, one run on each node makes it; if the filesystem has no locks, each run does.
The kernel, or the server of an NFS mount, releases the lock of a maker that died.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from model.record.files import hold_lock, no_link

POLL_SECONDS = 0.5  # many runs of an array may wait, on one server
_ENDED = b"ended without a certificate\n"


class Turn:
    """A place in the queue for one record, such as a certificate.

    Attributes:
        waited: whether another run came first.
    """

    def __init__(self, descriptor: int, path: Path) -> None:
        self.waited = False
        self._descriptor, self._path = descriptor, path

    @property
    def in_vain(self) -> bool:
        """Whether the run before ended without the record, for example for lack of memory.

        The waiting runs will probably fail too: they try at the same time instead of one after another.
        """
        return self.waited and os.pread(self._descriptor, len(_ENDED), 0) == _ENDED

    def done(self, made: bool) -> None:
        """Tell the waiting runs whether the record was made."""
        if made:
            self._path.unlink(missing_ok=True)
        else:
            os.pwrite(self._descriptor, _ENDED, 0)


@contextmanager
def turn(path: Path, wait_seconds: float, waiting: Callable[[], None]) -> Iterator[Turn | None]:
    """Wait for the lock at a path; yields None if there are no locks, or it took too long.

    Args:
        waiting: called once, if another run holds it.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = no_link(path, os.O_RDWR | os.O_CREAT)
    except OSError:
        yield None
        return
    own_turn = Turn(descriptor, path)

    def tell() -> None:
        own_turn.waited = True
        waiting()

    try:
        try:
            held = hold_lock(descriptor, wait_seconds, POLL_SECONDS, tell)
        except OSError:  # this filesystem has no locks
            held = False
        if not held or own_turn.in_vain:
            yield None
            return
        os.ftruncate(descriptor, 0)
        yield own_turn
    finally:
        os.close(descriptor)
