"""One launcher or repairer at a time for a study. The kernel frees the lock of a process that dies."""

from __future__ import annotations

import fcntl
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from model.errors import UserError

POLL_SECONDS = 0.1
log = logging.getLogger(__name__)


@contextmanager
def study_lock(study_folder: Path, wait_seconds: float) -> Iterator[bool]:
    """Hold a study's lock; gives False where another process kept it for `wait_seconds`.

    Where the filesystem has no locks this says so and goes on: each run's claim is a folder that only one
    launcher can make, so that nothing is started twice; only repairs could then meet.

    Raises:
        UserError: the study's folder cannot be written.
    """
    try:
        study_folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(study_folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise UserError(f"{study_folder}: {error.strerror}; choose another place with --root") from error
    try:
        yield _acquire(descriptor, study_folder, time.monotonic() + wait_seconds)
    finally:
        os.close(descriptor)


def _acquire(descriptor: int, folder: Path, until: float) -> bool:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > until:
                return False
            time.sleep(POLL_SECONDS)
        except OSError as error:
            log.warning(
                "%s: no file locks here (%s); do not launch this study twice at once", folder, error.strerror
            )
            return True
