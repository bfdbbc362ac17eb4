"""The database file: built elsewhere and renamed into place; all others open it read-only and sandboxed.

`collect` is the only writer. It works on a copy in the temporary directory, which is local to the node:
DuckDB is not safe on network filesystems. A rename does not disturb whoever is reading the old file.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from model.disk.files import replacing
from model.errors import UserError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

NAME = "results.duckdb"
# The oldest DuckDB that the package supports must be able to read what a newer one writes.
STORAGE_VERSION = "v1.5.0"
SANDBOX = {"enable_external_access": "false", "lock_configuration": "true"}
_FOLDER = Path(__file__).parent


@dataclass
class Build:
    """A database being built; `changed` says whether it has to replace the old one."""

    connection: DuckDBPyConnection
    changed: bool = False


def database(root: Path) -> Path:
    """Path of a root's database."""
    return root / NAME


def open_for_reading(root: Path) -> DuckDBPyConnection:
    """Open the database so that SQL can neither change it nor reach any other file or the network.

    Raises:
        UserError: nothing was collected yet, or the file is not a database of this version.
    """
    import duckdb

    path = database(root)
    if not path.exists():
        raise UserError(f"no database at {path}: run `runner collect` first")
    try:
        connection = duckdb.connect(path, read_only=True, config=dict(SANDBOX))
        if not _is_current(connection):
            connection.close()
            raise UserError(f"{path} was built by another version of assay: run `runner collect` again")
    except duckdb.Error as error:
        raise UserError(f"{path} cannot be opened: {first_lines(error)}") from error
    return connection


@contextmanager
def building(root: Path, fresh: bool) -> Iterator[Build]:
    """Yield a copy of the database to write to; it replaces the database if it changed and nothing failed.

    Args:
        root: the workspace.
        fresh: start from an empty database, as always if the old one is missing, broken or of another schema.
    """
    with TemporaryDirectory(prefix="assay-") as scratch:
        copy = Path(scratch) / NAME
        build = (None if fresh else _reopen(database(root), copy)) or _create(copy)
        try:
            yield build
            if build.changed:
                build.connection.execute("CHECKPOINT")
        finally:
            build.connection.close()
        if build.changed:
            _publish(copy, database(root))


def first_lines(error: Exception, lines: int = 3) -> str:
    """DuckDB's message without its trailing hints and stack."""
    return "\n".join(line for line in str(error).splitlines()[:lines] if line.strip())


def _reopen(old: Path, copy: Path) -> Build | None:
    import duckdb

    if not old.exists():
        return None
    shutil.copyfile(old, copy)
    try:
        connection = duckdb.connect(copy)
    except duckdb.Error:
        return None  # files are truth: a broken database is rebuilt from them
    if _is_current(connection):
        return Build(connection)
    connection.close()
    return None


def _create(path: Path) -> Build:
    import duckdb

    path.unlink(missing_ok=True)
    connection = duckdb.connect(path, config={"storage_compatibility_version": STORAGE_VERSION})
    connection.execute("BEGIN")  # one write to disk instead of one per comment
    for script in _scripts():
        connection.execute(script)
    connection.execute("INSERT INTO database_version VALUES (?)", [_fingerprint()])
    connection.execute("COMMIT")
    return Build(connection, changed=True)


def _publish(copy: Path, target: Path) -> None:
    try:
        with replacing(target, sync=False) as aside:
            shutil.copyfile(copy, aside)
    except OSError as error:
        raise UserError(f"{target}: {error.strerror}; the old database is unchanged") from error


def _scripts() -> list[str]:
    return [(_FOLDER / name).read_text(encoding="utf-8") for name in ("schema.sql", "views.sql")]


def _fingerprint() -> str:
    return hashlib.sha256("".join(_scripts()).encode()).hexdigest()


def _is_current(connection: DuckDBPyConnection) -> bool:
    import duckdb

    try:
        rows = connection.execute("SELECT fingerprint FROM database_version").fetchall()
    except duckdb.CatalogException:
        return False
    return rows == [(_fingerprint(),)]
