"""Where Assay keeps a user's own files, by the XDG Base Directory Specification."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Literal

_FOLDERS = {"cache": ".cache", "state": ".local/state"}


def user_folder(kind: Literal["cache", "state"]) -> Path:
    """This user's folder for files of one kind. It may not exist yet.

    Raises:
        OSError: the user has no home, as in some containers.
    """
    given = os.environ.get(f"XDG_{kind.upper()}_HOME", "")
    if given.startswith("/"):  # the specification: a relative path is invalid and counts as unset
        return Path(given, "assay")
    try:
        return Path.home() / _FOLDERS[kind] / "assay"
    except RuntimeError as error:
        raise OSError(errno.ENOENT, "this user has no home folder") from error
