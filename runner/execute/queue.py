"""One queue for this machine: a user's local launches run one after another, over all studies and roots.

Two at once would spoil each other's timings. The kernel releases the queue when the process that holds it
dies, so nothing is ever left behind that blocks it.
"""

from __future__ import annotations

import logging
import os
import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from model.disk.files import write_text
from model.disk.home import user_folder
from model.disk.locks import hold
from runner.state import process

log = logging.getLogger(__name__)


@contextmanager
def turn(launch: str) -> Iterator[bool]:
    """Hold this machine for one launch; yields whether it had to wait for another one.

    Where the queue cannot be used, this warns and continues.

    Args:
        launch: its name for the launches that wait, such as `tiny in /home/me/runs`.

    Raises:
        KeyboardInterrupt: the wait was interrupted.
    """
    descriptor = None
    try:
        try:
            descriptor = os.open(_file(), os.O_RDWR | os.O_CREAT, 0o600)
            waited = _acquire(descriptor, launch)
        except OSError as error:
            why = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
            log.warning(
                "cannot tell whether another launch runs on this machine: %s; "
                "set RUNNER_STATE to a folder of your own",
                why,
            )
            waited = False
        yield waited
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _file() -> Path:
    """The lock's file: one for each machine, because machines may share a home.

    Slurm keeps its jobs' resources apart, so a launch inside a job waits only for others in that job.
    """
    given = os.environ.get("RUNNER_STATE")
    folder = Path(given) if given else user_folder("state")
    folder.mkdir(0o700, parents=True, exist_ok=True)
    job = os.environ.get("SLURM_JOB_ID")
    return folder / f"{socket.gethostname()}{f'-job-{job}' if job else ''}.queue"


def waiting() -> dict[str, str]:
    """This user's launches that wait on this machine, and for which: by name, with their processes."""
    found = {}
    with suppress(OSError):
        file = _file()
        holder = file.read_text() or "another launch"
        for note in file.parent.glob(f"{file.name}.*"):
            launch, _, started = note.read_text().partition("\n")
            if process.runs(int(note.suffix[1:]), float(started)):
                found[f"{launch} (process {note.suffix[1:]})"] = holder
    return found


@contextmanager
def _noted(launch: str) -> Iterator[None]:
    """While a launch waits, a note says so to `waiting`. That of a process that was killed says nothing."""
    file = _file()
    note = file.with_name(f"{file.name}.{os.getpid()}")
    with suppress(OSError):
        write_text(note, f"{launch}\n{process.started(os.getpid())}", sync=False)
    try:
        yield
    finally:
        note.unlink(missing_ok=True)


def _acquire(descriptor: int, launch: str) -> bool:
    waited = False

    def tell() -> None:
        nonlocal waited
        waited = True
        notes.enter_context(_noted(launch))
        holder = os.pread(descriptor, 4096, 0).decode(errors="replace") or "another launch"
        log.info(
            "waiting for %s to finish, so that neither spoils the other's timings; "
            "Ctrl-C or `kill %d` stops waiting%s",
            holder,
            os.getpid(),
            _hint(holder),
        )

    with ExitStack() as notes:
        hold(descriptor, waiting=tell)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{launch} (process {os.getpid()})".encode(), 0)
    return waited


def _hint(holder: str) -> str:
    """What to type if the holder is suspended, for example by Ctrl-Z, and so would never finish."""
    named = re.search(r"\(process (\d+)\)$", holder)
    if not named or not process.suspended(int(named[1])):
        return ""
    pid = named[1]
    return f". Process {pid} is suspended: `kill -CONT {pid}` continues it, `kill {pid}` before that ends it"
