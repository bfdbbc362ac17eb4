"""New databases as copies of one that was made once.

The 400 statements of the schema, most of them comments, take a processor 0.15 s; tests make a new database some
thousand times. What a test process starts anew, and the first of each process here, still runs them.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from analysis.store import database

_made = database._create
_folder = Path(os.environ["ASSAY_TEST_SHARED"])


def install() -> None:
    """From now on, what collects in this process or its forks starts from a copy."""
    database._create = _copied


def _copied(path: Path, old: Path | None) -> database.Build:
    import duckdb

    blank = _folder / database._fingerprint()
    if not blank.exists():
        aside = Path(tempfile.mkdtemp(dir=_folder)) / database.NAME
        _made(aside, None).connection.close()
        aside.rename(blank)
    shutil.copyfile(blank, path)
    version = {"storage_compatibility_version": database.STORAGE_VERSION}
    return database.Build(duckdb.connect(path, config=version), changed=True, old=old)
