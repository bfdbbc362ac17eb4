"""New databases as copies of one that was made once.

The 400 statements of the schema, most of them comments, take a processor 0.15 s or more; tests make a new database
some thousand times, and audits some in memory. What a test process starts anew, and the first of each process here, still runs them.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.audit import audit
from analysis.store import collect, database, records

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_made, _made_in_memory = database._create, database.in_memory
_folder = Path(os.environ["ASSAY_TEST_SHARED"])


def install() -> None:
    """From now on, what collects or audits in this process or its forks starts from a copy."""
    database._create = _copied
    for module in (audit, collect, records):
        module.in_memory = _copied_in_memory


def _copied(path: Path, old: Path | None) -> database.Build:
    import duckdb

    shutil.copyfile(_blank(), path)
    version = {"storage_compatibility_version": database.STORAGE_VERSION}
    return database.Build(duckdb.connect(path, config=version), changed=True, old=old)


def _copied_in_memory(given: Sequence[str] | None = None, sandboxed: bool = True) -> DuckDBPyConnection:
    if given is not None and [*given] != [*database.scripts().values()]:
        return _made_in_memory(given, sandboxed)
    connection = database.connect(":memory:")
    connection.execute(f"ATTACH {database.quoted(str(_blank()))} AS blank (READ_ONLY)")
    connection.execute("COPY FROM DATABASE blank TO memory")
    connection.execute("DETACH blank")
    if sandboxed:
        database._close_off(connection)
    return connection


def _blank() -> Path:
    blank = _folder / database._fingerprint()
    if not blank.exists():
        aside = Path(tempfile.mkdtemp(dir=_folder)) / database.NAME
        _made(aside, None).connection.close()
        aside.rename(blank)
    return blank
