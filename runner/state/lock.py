"""A lock per study, held by one launcher or repairing command. The kernel releases it if its holder dies."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from model.record.errors import UserError
from model.record.files import hold_lock, no_link
from runner.state import guard
from runner.state.filesystem import require_writable

WAIT_SECONDS = 60.0
log = logging.getLogger(__name__)


@contextmanager
def locked(study_folder: Path, refusal: str | None = None) -> Iterator[None]:
    """Hold a study's lock.

    Args:
        refusal: what the error says.

    Raises:
        UserError: another process keeps it for WAIT_SECONDS, or the study's folder is not writable.
    """
    with study_lock(study_folder, WAIT_SECONDS) as held:
        if not held:
            keeps = f"another command has held {study_folder.name} for {WAIT_SECONDS:.0f} s; try again later"
            raise UserError(refusal or keeps)
        yield


@contextmanager
def study_lock(study_folder: Path, wait_seconds: float) -> Iterator[bool]:
    """Hold a study's lock; yields False if another process still holds it after `wait_seconds`.

    On a filesystem without locks this warns and continues. Even then nothing is started twice, because a run
    is claimed by a folder that only one launcher can create; only two repairs could collide.

    Raises:
        UserError: the study's folder is not writable.
    """
    require_writable(study_folder)
    try:
        guard.make(study_folder)
        descriptor = no_link(study_folder / ".lock", os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise UserError(f"{study_folder}: {error.strerror}; choose another place with --root") from error
    try:
        yield _held(descriptor, study_folder, wait_seconds)
    finally:
        os.close(descriptor)


def _held(descriptor: int, folder: Path, wait_seconds: float) -> bool:
    try:
        return hold_lock(descriptor, wait_seconds)
    except OSError as error:
        log.warning(
            "%s: the filesystem has no file locks (%s); do not run two launches of this study at once",
            folder,
            error.strerror,
        )
        return True
