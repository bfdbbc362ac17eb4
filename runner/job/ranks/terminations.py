"""Notices SIGTERM while the main thread is stuck: Python would run a handler only at its next instruction."""

from __future__ import annotations

import signal
import socket
from contextlib import suppress


class Terminations:
    """Made and closed by the main thread, in a process that handles SIGTERM."""

    def __init__(self) -> None:
        self._heard = False
        self._ours, self._pythons = socket.socketpair()
        for end in (self._ours, self._pythons):
            end.setblocking(False)
        self._before = signal.set_wakeup_fd(self._pythons.fileno(), warn_on_full_buffer=False)

    def heard(self) -> bool:
        """Whether SIGTERM has arrived."""
        with suppress(BlockingIOError):
            while numbers := self._ours.recv(64):
                self._heard = self._heard or signal.SIGTERM in numbers
        return self._heard

    def close(self) -> None:
        """Stop listening."""
        signal.set_wakeup_fd(self._before)
        self._ours.close()
        self._pythons.close()
