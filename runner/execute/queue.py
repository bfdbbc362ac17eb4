"""One queue for this machine: a user's local launches run one after another, over all studies and roots.

Two at once would spoil each other's timings. The kernel releases the queue when the process that holds it
dies, so nothing is ever left behind that blocks it.
"""

from __future__ import annotations

import logging
import os
import shlex
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from pydantic import BaseModel

from model.record.files import Unreadable, hold_lock, read, user_folder, write_text
from runner.state import process

_WAITING = (
    "waiting for %s to finish, so that neither spoils the other's timings; Ctrl-C or `kill %d` stops waiting"
)
log = logging.getLogger(__name__)


class Launch(BaseModel):
    """A launch that holds the queue or waits in it, as its file there says."""

    study: str
    root: Path
    pid: int
    pid_started: float

    def __str__(self) -> str:
        return f"{self.study} in {self.root} (process {self.pid})"


@contextmanager
def turn(study: str, root: Path) -> Iterator[bool]:
    """Hold this machine for one launch; yields whether it had to wait for another one.

    Where the queue cannot be used, this warns and continues.

    Raises:
        KeyboardInterrupt: the wait was interrupted.
    """
    pid = os.getpid()
    launch = Launch(study=study, root=root, pid=pid, pid_started=process.started(pid) or 0.0)
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


def waiting(root: Path, study: str | None = None) -> list[Launch]:
    """This user's launches under a root, or of one study, that wait on this machine."""
    launches = []
    with suppress(OSError):
        file = _file()
        for note in file.parent.glob(f"{file.name}.*"):
            with suppress(Unreadable):
                launch = read(note, Launch)
                if process.is_running(launch.pid, launch.pid_started):
                    launches.append(launch)
                else:  # it was killed
                    note.unlink(missing_ok=True)
    here = (launch for launch in launches if launch.root.resolve() == root.resolve())
    return [launch for launch in here if study in (None, launch.study)]


def waiting_studies(root: Path) -> list[str]:
    """The studies of these launches, each as often as it waits."""
    return [launch.study for launch in waiting(root)]


def describe_waiting(root: Path, study: str | None = None) -> list[str]:
    """A sentence for each launch that waits, as of `waiting`, with the launch that it waits for."""
    return [
        f"{launch} waits for its turn, after {holder() or 'another launch'}"
        for launch in waiting(root, study)
    ]


def running(root: Path, study: str) -> Launch | None:
    """The launch of a study that has its turn on this machine and has not ended."""
    launch = holder()
    if launch and launch.study == study and launch.root.resolve() == root.resolve():
        return launch if process.is_running(launch.pid, launch.pid_started) else None
    return None


def end_waiting(root: Path, study: str) -> list[Launch]:
    """End the launches of a study that wait on this machine, and return those that could be told to."""
    ended = []
    for launch in waiting(root, study):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(launch.pid, signal.SIGTERM)
            process.resume_group(launch.pid)  # one that is suspended would not hear it
            ended.append(launch)
    return ended


def holder() -> Launch | None:
    """The launch that holds the queue, or held it last; None if its file does not say."""
    with suppress(OSError, Unreadable):
        return read(_file(), Launch)
    return None


def _acquire(descriptor: int, launch: Launch) -> bool:
    """Hold the queue; returns whether it had to wait for another launch."""
    waited = False
    note: Path | None = None

    def tell() -> None:
        """Say what is waited for, and note it for `waiting`, which ignores the notes of dead processes."""
        nonlocal waited, note
        waited, file = True, _file()
        note = file.with_name(f"{file.name}.{launch.pid}")
        with suppress(OSError):
            write_text(note, launch.model_dump_json(), sync=False)
        log.info("%s", _reason_to_wait(launch, holder()))

    try:
        hold_lock(descriptor, waiting=tell)
    finally:
        if note:
            note.unlink(missing_ok=True)
    if waited:
        log.info("%s no longer waits: it is its turn", launch)
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, launch.model_dump_json().encode(), 0)
    return waited


def _reason_to_wait(launch: Launch, first: Launch | None) -> str:
    """Say what a launch waits for, and what to type to stop waiting, to run beside it, or to wake it."""
    if first is None:
        return _WAITING % ("another launch", launch.pid)
    begun = ""
    if process.is_running(first.pid, first.pid_started):
        with suppress(OSError):  # the queue's file is written when a launch gets its turn
            moment = datetime.fromtimestamp(_file().stat().st_mtime).astimezone()
            today = moment.date() == datetime.now().astimezone().date()
            begun = f", which began at {moment:{'%H:%M' if today else '%Y-%m-%d %H:%M'}},"
    text = _WAITING % (f"{first}{begun}", launch.pid)
    text += (
        f". `runner --root {shlex.quote(str(first.root))} status {first.study}` shows how far it is; with "
        "RUNNER_STATE=FOLDER in front, this command starts at once, where timings do not matter"
    )
    if process.is_suspended(pid := first.pid):  # for example by Ctrl-Z: it would never finish
        wake = f"`kill -CONT {pid}` continues it, `kill {pid}` before that ends it"
        text += f". Process {pid} is suspended: {wake}"
    return text
