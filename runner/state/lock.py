"""A lock per study, held by one launcher or repairing command. The kernel releases it if its holder dies."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from model.disk.files import no_link
from model.disk.locks import hold
from model.errors import UserError

log = logging.getLogger(__name__)


@contextmanager
def study_lock(study_folder: Path, wait_seconds: float) -> Iterator[bool]:
    """Hold a study's lock; yields False if another process still holds it after `wait_seconds`.

    On a filesystem without locks this warns and continues. Even then nothing is started twice, because a run
    is claimed by a folder that only one launcher can create; only two repairs could collide.

    Raises:
        UserError: the study's folder is not writable.
    """
    try:
        study_folder.mkdir(parents=True, exist_ok=True)
        descriptor = no_link(study_folder / ".lock", os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise UserError(f"{study_folder}: {error.strerror}; choose another place with --root") from error
    try:
        yield _held(descriptor, study_folder, wait_seconds)
    finally:
        os.close(descriptor)


def _held(descriptor: int, folder: Path, wait_seconds: float) -> bool:
    try:
        return hold(descriptor, wait_seconds)
    except OSError as error:
        log.warning(
            "%s: the filesystem has no file locks (%s); do not run two launches of this study at once",
            folder,
            error.strerror,
        )
        return True
