"""The database file: built elsewhere and renamed into place; all others open it read-only and sandboxed.

`collect` is the only writer. It works on a copy in the temporary directory, which is local to the node:
DuckDB is not safe on network filesystems. A rename does not disturb whoever is reading the old file.
Where a root cannot be written to, what was collected from it lasts as long as this process.

Collects take turns: each starts from what the one before left. Where file locks do not reach from one machine
to another, a collect that finds the database replaced under its hands starts over.
"""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir, mkdtemp
from typing import TYPE_CHECKING, TypeVar

from model.measure.machine import cores
from model.record.errors import UserError, shortage
from model.record.files import hold_lock, no_link, replacing, this_process

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

NAME = "results.duckdb"
# The oldest DuckDB that the package supports must be able to read what a newer one writes.
STORAGE_VERSION = "v1.5.0"
LOCK = ".collect.lock"  # in the root
# Nothing outside the file: no other file, no network, and no variable of the program that asks.
_Config = dict[str, str | bool | int | float | list[str]]
SANDBOX: _Config = {
    "enable_external_access": "false",
    "python_enable_replacements": "false",
    "lock_configuration": "true",
}
_FOLDER = Path(__file__).parent
DERIVE = "derive.sql"
_SCRIPTS = ("schema.sql", "views.sql", DERIVE)
# Where views.sql says whose comments a view's columns have that have none of their own: the first of these.
_COMMENTED_AS = re.compile(
    r"^-- Columns without a comment have that of: (.+)\.\nCREATE VIEW (\w+) ", re.MULTILINE
)
# Ends the line of a table or view, or of a column in it: what that is.
_COMMENT = "  --: "
_COMMENTS = """\
SELECT table_name, column_name, comment FROM duckdb_columns() WHERE database_name = current_database()"""
_LEAST_BYTES = 2**20  # with fewer a disk is full: a database of one run has four times as many
_MOST_THREADS = 8  # a study's database has megabytes
_Identity = tuple[int, int, int] | None  # of a file: inode, time and size
_MEMORY: ContextVar[int | None] = ContextVar("memory", default=None)  # bytes that a database may use
_elsewhere: dict[Path, Path] = {}  # by root that cannot be written to: its database's folder
T = TypeVar("T")
log = logging.getLogger(__name__)


class _Overtaken(Exception):
    """Another collect replaced the database while this one worked on a copy of it."""


@dataclass
class Build:
    """A database being built.

    Attributes:
        changed: whether it has to replace the old one.
        old: a copy of the database that it does not start from: of another version, broken, or unwanted.
    """

    connection: DuckDBPyConnection
    changed: bool = False
    old: Path | None = None


def database(root: Path) -> Path:
    """Path of a root's database: a temporary one if this process collected a root that it cannot write to."""
    folder = _elsewhere.get(root.resolve()) if _elsewhere else None
    return (folder or root) / NAME


def can_collect(root: Path) -> bool:
    """Whether this user can replace the root's database; in a folder with the sticky bit, its owner can."""
    if not os.access(root, os.W_OK | os.X_OK) or shutil.disk_usage(root).free < _LEAST_BYTES:
        return False
    if not root.stat().st_mode & stat.S_ISVTX or not (root / NAME).exists():
        return True
    return os.geteuid() in (0, root.stat().st_uid, (root / NAME).stat().st_uid)


def connect(path: Path | str, config: _Config | None = None) -> DuckDBPyConnection:
    """Open a database with a few of the cores that this process may use.

    By itself DuckDB 2.0 starts five threads for each core of the machine, whichever the process may use.
    """
    import duckdb

    threads = min(cores(), _MOST_THREADS)
    limits: _Config = {"threads": threads, "async_threads": threads}
    if memory := _MEMORY.get():
        limits |= {"memory_limit": f"{memory}B", "temp_directory": ""}
    try:
        return duckdb.connect(path, config={**limits, **(config or {})})
    except duckdb.InvalidInputException as error:
        if "async_threads" not in str(error):
            raise
        del limits["async_threads"]  # DuckDB 1.5 has none
        return duckdb.connect(path, config={**limits, **(config or {})})


def limit_memory(memory_bytes: int) -> None:
    """Let each database that is opened from here on use so much memory, and put nothing on disk instead."""
    _MEMORY.set(memory_bytes)


def open_for_reading(root: Path) -> DuckDBPyConnection:
    """Open the database so that SQL can neither change it nor reach any other file or the network.

    What is read is the file of this moment, also after a collect has replaced it. It is attached to one in
    memory, because DuckDB gives a process that still has an old file open that file once more.

    Args:
        root: the workspace.

    Raises:
        UserError: nothing was collected yet, or the file is not a database of this version.
    """
    import duckdb

    path = database(root)
    if not path.exists():
        raise UserError(f"no database at {path}: run `runner collect` first")
    if not path.is_file():
        raise UserError(f"{path} is in the database's place but is not a file: rename it")
    connection = connect(":memory:")
    try:
        connection.execute(f"ATTACH {quoted(str(path))} AS results (READ_ONLY)")
        connection.execute("USE results")
        _close_off(connection)
        if not _is_current(connection):
            raise UserError(f"{path} was built by another version of assay: run `runner collect` again")
    except duckdb.Error as error:
        connection.close()
        raise UserError(f"{path} cannot be opened: {first_lines(error)}") from error
    except UserError:
        connection.close()
        raise
    return connection


def _close_off(connection: DuckDBPyConnection) -> None:
    for name, value in SANDBOX.items():
        connection.execute(f"SET {name} = {value}")


def quoted(text: str) -> str:
    """The text as a literal of SQL."""
    return "'" + text.replace("'", "''") + "'"


def in_memory(given: Sequence[str] | None = None, sandboxed: bool = True) -> DuckDBPyConnection:
    """An empty database in memory.

    Args:
        given: SQL that creates its tables and views; by default this version's.
        sandboxed: False where our own SQL must read files.

    Raises:
        UserError: the scripts cannot be run.
    """
    import duckdb

    connection = connect(":memory:")
    try:
        if sandboxed:
            _close_off(connection)
        _make_tables_and_views(connection, [*scripts().values()] if given is None else given)
    except duckdb.Error as error:
        raise UserError(f"the tables and views cannot be made: {first_lines(error)}") from error
    return connection


def studies(root: Path) -> list[str]:
    """Names of the studies in the database; empty if it cannot be read."""
    import duckdb

    try:
        with open_for_reading(root) as connection:
            return studies_of(connection)
    except (UserError, duckdb.Error):
        return []


def studies_of(connection: DuckDBPyConnection) -> list[str]:
    """Names of the studies in an open database."""
    rows = connection.execute("SELECT DISTINCT study FROM run_records ORDER BY study").fetchall()
    return [row[0] for row in rows]


def update(root: Path, fresh: bool, work: Callable[[Build], T]) -> T:
    """Do work on a copy of the database, which replaces it if the work changed it and nothing failed.

    If this user cannot replace it, the result is what this process reads as the root's database from then on.

    Args:
        root: the workspace.
        fresh: start from an empty database, as always if the old one is missing, broken or of another schema.
        work: called again, on a new copy, if another collect was faster.

    Raises:
        UserError: something else is in the database's place, or the disk is full.
    """
    import duckdb

    if database(root).exists() and not database(root).is_file():
        raise UserError(f"{database(root)} is in the database's place but is not a file: rename it")
    here = can_collect(root)
    if not here and root.resolve() not in _elsewhere:
        # Begin a database outside of the root, with what the root's own holds.
        folder = Path(mkdtemp(prefix=_scratch_prefix()))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        with suppress(OSError):  # there is none, or one that cannot be read
            shutil.copyfile(root / NAME, folder / NAME)
        _elsewhere[root.resolve()] = folder
        log.info("%s cannot be written to: its runs are read into a temporary database", root)

    with _turn(root) if here else nullcontext():
        sweep(root)
        while True:
            try:
                return _update_once(root, fresh, work)
            except _Overtaken:
                log.warning("another collect has replaced %s: starting over from its result", database(root))
            except duckdb.Error as error:
                if advice := shortage(error):
                    raise UserError(f"{gettempdir()}: {first_lines(error, 1)}; {advice}") from error
                if fresh:
                    raise
                log.warning("%s is damaged (%s): rebuilding it", database(root), first_lines(error, 1))
                fresh = True


def _scratch_prefix() -> str:
    """Begins the names of folders for databases, by which `sweep` knows those that nobody needs any more."""
    return f"assay-{this_process()}-"


def _update_once(root: Path, fresh: bool, work: Callable[[Build], T]) -> T:
    with TemporaryDirectory(prefix=_scratch_prefix()) as scratch:
        copy, old, before = Path(scratch) / NAME, Path(scratch) / "old", _identity(database(root))
        if before:
            shutil.copyfile(database(root), old)
        build = (None if fresh else _reopen(old, copy)) or _create(copy, old if before else None)
        try:
            done = work(build)
            if build.changed:
                build.connection.execute("CHECKPOINT")
        finally:
            build.connection.close()
        if build.changed:
            _publish(copy, database(root), before)
        return done


def sweep(root: Path) -> None:
    """Remove what killed collects left on this machine: twice the size of the database."""
    import psutil

    host = re.escape(os.uname().nodename)
    left = ((root, rf"\.{re.escape(NAME)}\.(\d+)@{host}"), (Path(gettempdir()), rf"assay-(\d+)@{host}-\w+"))
    for folder, pattern in left:
        for entry in os.scandir(folder):
            match = re.fullmatch(pattern, entry.name)
            if match and not psutil.pid_exists(int(match[1])):
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path, ignore_errors=True)
                else:
                    with suppress(OSError):
                        os.unlink(entry.path)  # noqa: PTH108  not followed


@contextmanager
def _turn(root: Path) -> Iterator[None]:
    """Wait until no other collect of this root is at work; if one dies, the kernel releases its lock."""
    try:
        try:
            descriptor = no_link(root / LOCK, os.O_RDWR | os.O_CREAT)
        except PermissionError:  # another member of the group made it; most filesystems lock it all the same
            if not (root / LOCK).exists():
                raise
            descriptor = no_link(root / LOCK, os.O_RDONLY)
    except OSError as error:
        raise UserError(f"{root}: {error.strerror}; nothing can be collected there") from error

    def waiting() -> None:
        log.info("waiting for another collect of %s to finish", root)

    try:
        try:
            hold_lock(descriptor, waiting=waiting)
        except OSError as error:
            log.warning("%s: the filesystem has no file locks (%s)", root, error.strerror)
        yield
    finally:
        os.close(descriptor)


def _identity(path: Path) -> _Identity:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def first_lines(error: BaseException, lines: int = 3) -> str:
    """DuckDB's message without its trailing hints and stack."""
    return "\n".join(line for line in str(error).splitlines()[:lines] if line.strip())


def _reopen(old: Path, copy: Path) -> Build | None:
    import duckdb

    if not old.exists():
        return None
    old.rename(copy)
    try:
        connection = connect(copy)
    except duckdb.Error:
        copy.rename(old)
        return None  # files are truth: a broken database is rebuilt from them
    if _is_current(connection):
        return Build(connection)
    connection.close()
    copy.rename(old)
    return None


def _create(path: Path, old: Path | None) -> Build:
    connection = connect(path, {"storage_compatibility_version": STORAGE_VERSION})
    connection.execute("BEGIN")  # one write to disk instead of one per comment
    _make_tables_and_views(connection, [*scripts().values()])
    connection.execute("INSERT INTO database_version VALUES (?)", [_fingerprint()])
    connection.execute("COMMIT")
    return Build(connection, changed=True, old=old)


def _publish(copy: Path, target: Path, before: _Identity) -> None:
    """Put the copy in place, unless the database is no longer the one that it was made from."""
    try:
        with replacing(target, sync=False) as aside:
            shutil.copyfile(copy, aside)
            if _identity(target) != before:
                raise _Overtaken
    except OSError as error:
        raise UserError(f"{target}: {error.strerror}; the old database is unchanged") from error


def _make_tables_and_views(connection: DuckDBPyConnection, given: Sequence[str]) -> None:
    for script in given:
        connection.execute(script)
        _comment(connection, script)
    comments: dict[str, dict[str, str | None]] = {}
    for name, column, comment in connection.execute(_COMMENTS).fetchall():
        comments.setdefault(name, {})[column] = comment
    for sources, view in _COMMENTED_AS.findall("".join(given)):
        for column in [column for column, comment in comments.get(view, {}).items() if comment is None]:
            texts = (comments.get(source, {}).get(column) for source in sources.split(", "))
            if text := next(filter(None, texts), None):
                comments[view][column] = text
                connection.execute(f'COMMENT ON COLUMN {view}."{column}" IS {quoted(text)}')


def _comment(connection: DuckDBPyConnection, script: str) -> None:
    """Give tables, views and columns the comments on their lines of the script."""
    kind = relation = ""
    for line in script.splitlines():
        if created := re.match(r"CREATE (TABLE|VIEW) (\w+) ", line):
            kind, relation = created.groups()
        code, mark, comment = line.partition(_COMMENT)
        if mark and created:
            connection.execute(f"COMMENT ON {kind} {relation} IS {quoted(comment)}")
        elif mark:  # a table's line begins with the column's name, and a view's ends with it
            words = re.findall(r"\w+", code)
            column = words[0 if kind == "TABLE" else -1]
            connection.execute(f'COMMENT ON COLUMN {relation}."{column}" IS {quoted(comment)}')


@cache
def scripts() -> dict[str, str]:
    """The SQL that creates tables and views, and last what derives from steps, by the name of its file."""
    return {name: (_FOLDER / name).read_text(encoding="utf-8") for name in _SCRIPTS}


def _fingerprint() -> str:
    return hashlib.sha256("".join(scripts().values()).encode()).hexdigest()


def _is_current(connection: DuckDBPyConnection) -> bool:
    import duckdb

    try:
        rows = connection.execute("SELECT fingerprint FROM database_version").fetchall()
    except duckdb.CatalogException:
        return False
    return rows == [(_fingerprint(),)]
