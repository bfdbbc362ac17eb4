"""The file through which the processes of a run meet: rank 0 writes its address there."""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from model.record.config import Frozen
from model.record.errors import AssayError
from model.record.files import open_regular
from runner.job.slurm import nodes_of_job

POLL_SECONDS = 0.2
ASK_SECONDS = 3.0  # between checks whether rank 0 has ended
HERE = "127.0.0.1"  # for processes that are all on this machine
PATIENCE_SECONDS = 600.0  # until a node has started its part of a job


class NobodyCame(AssayError):
    """Processes of a run did not find each other; the text names them."""


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


def serve(host: str, backlog: int | None = None) -> socket.socket:
    """A listening socket; other machines can connect only if the host is not HERE."""
    return socket.create_server((HERE if host == HERE else "", 0), backlog=backlog)


def my_name() -> str:
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


def place_of(jobs: Path, slot: int) -> Path:
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


def found(
    path: Path, patience_seconds: float = PATIENCE_SECONDS, is_over: Callable[[], bool] = lambda: False
) -> Meeting:
    """Wait for the file, or until there is nothing left to do.

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
