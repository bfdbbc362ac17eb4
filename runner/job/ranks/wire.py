"""A connection between two processes of a run: messages in both directions; each notices the other's end."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import suppress
from threading import Lock
from typing import Any

# A host that vanishes sends no end of file: after some seconds of silence the kernel probes it, and gives up
# after some probes without an answer. In all that takes 13 s.
_IDLE_SECONDS, _BETWEEN_SECONDS, _TIMES = 4, 3, 3
_UNANSWERED_MILLISECONDS = 13_000  # the same for what was sent and not acknowledged

Message = dict[str, Any]


class Vanished(OSError):
    """The other process's host no longer answers."""


class Connection:
    """Messages to and from another process; several threads may send."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel, self._sending = channel, Lock()
        _watch(channel)

    def say(self, **message: Any) -> None:
        """Send a message. It is dropped if the connection has ended, which the listening thread notices."""
        line = json.dumps(message).encode() + b"\n"
        with self._sending, suppress(OSError):
            self._channel.sendall(line)

    def heard(self) -> Iterator[Message]:
        """What the other process says, until it ends or closes the connection.

        Raises:
            Vanished: its host no longer answers.
        """
        left = b""
        while said := self._received():
            *lines, left = (left + said).split(b"\n")
            yield from map(json.loads, lines)

    def _received(self) -> bytes:
        try:
            return self._channel.recv(65536)
        except (ConnectionResetError, BrokenPipeError):
            return b""
        except OSError as error:
            raise Vanished(*error.args) from error

    def close(self) -> None:
        """End the connection; whoever waits for a message gets the end of file."""
        with suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)
        self._channel.close()


def _watch(channel: socket.socket) -> None:
    """Have the kernel notice that the other host is gone."""
    channel.settimeout(None)
    channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    channel.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE_SECONDS)
    channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _BETWEEN_SECONDS)
    channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _TIMES)
    channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNANSWERED_MILLISECONDS)
