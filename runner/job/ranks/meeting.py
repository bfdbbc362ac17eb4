"""How the processes of a run meet: rank 0 writes its address to a file, the others connect, all join it."""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from model.record.config import Frozen, RunConfig
from model.record.errors import AssayError, OfAnotherProcess
from model.record.files import open_regular
from model.training.parallel.place import Place
from runner.job.slurm import nodes_of_job
from runner.state import gpus
from runner.state.endings import Ending

if TYPE_CHECKING:
    from model.training.parallel.world import World

POLL_SECONDS = 0.2
ASK_SECONDS = 3.0  # between checks whether rank 0 has ended
HERE = "127.0.0.1"  # for processes that are all on this machine
PATIENCE_SECONDS = 600.0  # until a node has started its part of a job
# A host that vanishes sends no end of file: after some seconds of silence the kernel probes it, and gives up
# after some probes without an answer. In all that takes 13 s.
_IDLE_SECONDS, _BETWEEN_SECONDS, _TIMES = 4, 3, 3
_UNANSWERED_MILLISECONDS = 13_000  # the same for what was sent and not acknowledged
# What torch.distributed says when a partner is gone: TCP, gloo, NCCL, its store, and their time-outs.
_ECHO = re.compile(
    r"connection (was )?(closed|reset|refused|aborted)|broken pipe|recvValue failed|nccl|gloo|"
    r"timed out|timeout|Dist(Network|Store|Backend)?Error",
    re.IGNORECASE,
)

Message = dict[str, Any]


class NobodyCame(AssayError):
    """Processes of a run did not find each other; the text names them."""


class Vanished(OSError):
    """The other process's host no longer answers."""


class Meeting(Frozen):
    """Where rank 0 listens.

    Attributes:
        attempt: the number of the attempt; 0: nothing is left to do.
        token: proves that a process belongs to this run, since only the run's user can read it.
    """

    attempt: int
    host: str = ""
    port: int = 0
    token: str = ""

    @classmethod
    def at(cls, attempt: int, host: str, port: int) -> Meeting:
        """A meeting on this host, with a token of its own."""
        return cls(attempt=attempt, host=host, port=port, token=secrets.token_hex(16))


def node_name() -> str:
    """The name of this process's node."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def of_rank_0(ending: Ending) -> Ending:
    """The ending, with this process's rank and node if it concerns only this process."""
    if not ending.outcome.of_one_process:
        return ending
    return replace(ending, reason=f"rank 0 on {node_name()}: {ending.reason}")


def reachable_name() -> str:
    """The name by which this job's other nodes reach this one: Slurm's name for it if it resolves.

    Where the profile has a `host_suffix`, that is at the end of the name, before any domain.
    """
    if nodes_of_job() == 1:
        return HERE
    suffix = os.environ.get("ASSAY_HOST_SUFFIX", "")
    split = (
        name.partition(".") for name in (os.environ.get("SLURMD_NODENAME"), socket.gethostname()) if name
    )
    names = [f"{host}{suffix}{dot}{domain}" for host, dot, domain in split]
    for name in names:
        with suppress(OSError):
            socket.getaddrinfo(name, None, socket.AF_INET)
            return name
    return names[-1]


def listen(host: str, backlog: int | None = None) -> socket.socket:
    """A listening socket; other machines can connect only if the host is not HERE."""
    return socket.create_server((HERE if host == HERE else "", 0), backlog=backlog)


def meeting_file(jobs: Path, slot: int) -> Path:
    """The file of a slot of this Slurm job; each restart has its own."""
    restart = os.environ.get("SLURM_RESTART_COUNT", "0")
    return jobs / f"{os.environ['SLURM_JOB_ID']}_{restart}_{slot}.meeting"


def publish(path: Path, meeting: Meeting) -> None:
    """Write where rank 0 listens, for this user alone."""
    aside = path.with_name(f".{path.name}")
    aside.unlink(missing_ok=True)
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(meeting.model_dump_json())
    aside.rename(path)


def wait_for_meeting(
    path: Path, patience_seconds: float = PATIENCE_SECONDS, is_over: Callable[[], bool] = lambda: False
) -> Meeting:
    """Wait for rank 0's file, or until there is nothing left to do.

    Args:
        is_over: whether rank 0 has ended, and will write no file.

    Raises:
        NobodyCame: rank 0 did not write it, or it is another user's.
    """
    begun, asked = time.monotonic(), time.monotonic()
    while (now := time.monotonic()) < begun + patience_seconds:
        # NFS caches that a file was not there; listing the folder makes it look again.
        if path.name in os.listdir(path.parent):  # noqa: PTH208  strings are enough
            with suppress(OSError, ValidationError), open(path, "rb", opener=open_regular) as file:
                if os.fstat(file.fileno()).st_uid != os.geteuid():
                    raise NobodyCame(f"{path} belongs to another user")
                return Meeting.model_validate_json(file.read())
        elif now - asked > ASK_SECONDS:
            asked = now
            if is_over():
                return Meeting(attempt=0)
        time.sleep(POLL_SECONDS)
    raise NobodyCame(f"rank 0 did not publish its address within {patience_seconds:g} s: no {path.name}")


class Connection:
    """Messages to and from another process of the run; several threads may send.

    The kernel watches the other host, so that its end is noticed as well as the process's.
    """

    def __init__(self, channel: socket.socket) -> None:
        self._channel, self._sending = channel, Lock()
        channel.settimeout(None)
        channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        channel.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE_SECONDS)
        channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _BETWEEN_SECONDS)
        channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _TIMES)
        channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNANSWERED_MILLISECONDS)

    def send(self, **message: Any) -> None:
        """Send a message. It is dropped if the connection has ended, which the listening thread notices."""
        line = json.dumps(message).encode() + b"\n"
        with self._sending, suppress(OSError):
            self._channel.sendall(line)

    def messages(self) -> Iterator[Message]:
        """The other process's messages, until it ends or closes the connection.

        Raises:
            Vanished: its host no longer answers.
        """
        rest = b""
        while True:
            try:
                chunk = self._channel.recv(65536)
            except (ConnectionResetError, BrokenPipeError):
                return
            except OSError as error:
                raise Vanished(*error.args) from error
            if not chunk:
                return
            *lines, rest = (rest + chunk).split(b"\n")
            yield from map(json.loads, lines)

    def close(self) -> None:
        """End the connection; whoever waits for a message gets the end of file."""
        with suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)
        self._channel.close()


def show_own_gpu(config: RunConfig, local_rank: int) -> None:
    """Show only one GPU to this process and to those that it starts, such as a trial's.

    Call this before torch is imported: CUDA and HIP look only once. A process that sees one GPU has been
    given it by Slurm. If there are too few, two processes get the same, which `hold_gpu` refuses.
    """
    devices = gpus.visible(os.environ) if config.device == "cuda" else []
    if len(devices) > 1:
        os.environ[gpus.variable(os.environ)] = devices[local_rank % len(devices)]


def join_world(place: Place, config: RunConfig, listening: socket.socket | None = None) -> World:
    """Join torch's processes at rank 0's address.

    Args:
        listening: rank 0's socket at that address.

    Raises:
        RuntimeError: torch's, if they cannot reach each other.
    """
    import torch

    from model.training.parallel.world import join

    device = torch.device("cuda:0" if config.device == "cuda" else "cpu")
    return join(place, config.parallel, device, listening)


def is_echo(error: BaseException) -> bool:
    """Whether it is another process's error, or that one's death may be what raised it here."""
    if isinstance(error, OfAnotherProcess):
        return True
    return isinstance(error, RuntimeError) and bool(_ECHO.search(f"{type(error).__name__}: {error}"))
