"""Rows whose files are gone, as when a scratch filesystem deletes what is old: they are kept and marked.

A run whose ledger does not continue the one that was read is another run in the same folder, and replaces it.
"""

from __future__ import annotations

import hashlib
import logging
import re
import shutil
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.store.copying import copy_rows
from analysis.store.database import Build, database, first_lines
from analysis.store.ingest import file_rows
from analysis.store.scan import CERTIFICATES, NODES, FilesByPath, FileState, Key, SourceFiles
from analysis.store.steps import STEP_TABLES, loaded_into, recorded_columns
from analysis.store.tables import (
    ATTEMPT_TABLES,
    OF_NODES,
    OWNER,
    RecordedFiles,
    Row,
    insert,
    recorded_files,
    registered,
)
from model.record.files import open_regular, replacing
from model.record.units import counted

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_OF_ATTEMPT = re.compile(r"/attempt-(\d+)/")
_WORTH_KEEPING = f"""\
SELECT study, run_id FROM run_records UNION ALL
SELECT study, run_id FROM files WHERE {OF_NODES} UNION ALL
SELECT '{CERTIFICATES}', key FROM certificates WHERE key IN (SELECT certificate FROM attempts)"""
_OF_KERNELS = f"""\
SELECT DISTINCT '{CERTIFICATES}', key FROM certificates JOIN kernels ON kernels.certificate = key"""
_KEY_OF_KERNELS = """\
FROM duckdb_columns() WHERE database_name = current_database()
    AND table_name = 'kernels' AND column_name = 'certificate'"""
# In `lost`, no attempt means every attempt of the run.
_KEEP = """\
CREATE TEMP TABLE kept_{table} AS SELECT {columns} FROM {table} t WHERE {condition} AND EXISTS (
    FROM lost l WHERE l.study = t.study AND l.run_id = t.run_id
    AND coalesce(l.attempt, t.attempt) = t.attempt)"""
_RESTORE = """\
DELETE FROM {into} WHERE (study, run_id, attempt) IN (SELECT (study, run_id, attempt) FROM kept_{table});
INSERT INTO {into} BY NAME SELECT * FROM kept_{table};
DROP TABLE kept_{table}"""
_COLUMNS = """\
SELECT column_name FROM duckdb_columns() WHERE database_name = 'old' AND table_name = $1
INTERSECT SELECT column_name FROM duckdb_columns() WHERE database_name <> 'old' AND table_name = $2"""
KINDS = ("certificate", "node", "run")
_SHOWN = 5  # runs that a message names
log = logging.getLogger(__name__)


def find_lost(
    connection: DuckDBPyConnection, root: Path, on_disk: dict[Key, SourceFiles], recorded: RecordedFiles
) -> dict[Key, tuple[FileState, ...]]:
    """The files that are gone since they were read, of runs with rows and of certificates of attempts."""
    gone: dict[Key, list[FileState]] = {}
    for key, before in recorded.items():
        paths = {file.path for file in on_disk[key].files} if key in on_disk else set()
        if files := [file for path, file in before.items() if path not in paths]:
            gone[key] = files
    if not gone:
        return {}
    worth_keeping = set(connection.execute(_WORTH_KEEPING).fetchall())
    if connection.execute(_KEY_OF_KERNELS).fetchall():  # a database of an earlier version may have none
        worth_keeping |= set(connection.execute(_OF_KERNELS).fetchall())
    now = datetime.now(UTC).replace(tzinfo=None, microsecond=0)
    return {
        key: tuple(file._replace(missing_since=file.missing_since or now) for file in files)
        for key, files in gone.items()
        if key in worth_keeping and not _is_another_run(root, key, recorded[key])
    }


def _is_another_run(root: Path, key: Key, recorded: FilesByPath) -> bool:
    """Whether the folder has a ledger that is not the one that was read, nor continues it."""
    path = "/".join((*key, "ledger.jsonl"))
    if (before := recorded.get(path)) is None:
        return False
    try:
        with open(root / path, "rb", opener=open_regular) as file:
            content = file.read()
    except OSError:
        return False
    return hashlib.sha256(content[: before.size_bytes]).hexdigest() != before.sha256


@contextmanager
def keeping(connection: DuckDBPyConnection, sources: Iterable[SourceFiles]) -> Iterator[None]:
    """Put the rows of attempts whose files are gone back after the body, which reads the rest of the run."""
    import pyarrow as pa

    rows: list[tuple[str, str, int | None]] = []
    for source in sources:
        for file in source.lost:
            match = _OF_ATTEMPT.search(file.path)
            rows.append((*source.key, int(match[1]) if match else None))
    if not rows:
        yield
        return
    tables = (*ATTEMPT_TABLES, "step_records")
    columns_lost = [list(column) for column in zip(*rows, strict=True)]
    with registered(connection, "lost", pa.table(columns_lost, ("study", "run_id", "attempt"))):
        for table in tables:
            # An attempt in flight had nothing to say yet.
            condition = "t.outcome IS NOT NULL" if table == "attempts" else "true"
            columns = recorded_columns(table)
            connection.execute(_KEEP.format(table=table, columns=columns, condition=condition))
    yield
    for table in tables:
        connection.execute(_RESTORE.format(table=table, into=loaded_into(table)))


def inherit(
    build: Build,
    root: Path,
    on_disk: dict[Key, SourceFiles],
    condition: str,
    tables: tuple[str, ...],
    drop: bool,
) -> None:
    """Take over what no file says any more from the database that a new one replaces.

    Args:
        condition: on the table `files`, picks the files of one kind of source.
        tables: the tables to take over.
        drop: leave it behind, and say so.
    """
    import duckdb

    if build.old is None:
        return
    connection = build.connection
    try:
        connection.execute(f"ATTACH '{build.old}' AS old (READ_ONLY)")
        ((new,),) = connection.execute("SELECT current_database()").fetchall()
        connection.execute("USE old")
        try:
            recorded = recorded_files(connection, condition.replace("$1", "NULL"))
            lost = find_lost(connection, root, on_disk, recorded)
        finally:
            connection.execute(f"USE {new}")
        if lost and drop:
            log.warning("--rebuild drops %s: their files are gone", named(lost))
        elif lost:
            own_tables = [table for table in tables if table not in ("files", *STEP_TABLES)]
            connection.execute("BEGIN")
            try:
                copy_rows(connection, lost, _old_rows(connection, [*own_tables, "step_records"]))
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")
            rows: list[Row] = []
            for key, files in lost.items():
                paths = {file.path for file in files}
                # The other files of a run are not read again where its run.json is gone.
                unread = any(path.endswith("/run.json") for path in paths)
                rest = [file for path, file in recorded[key].items() if unread and path not in paths]
                rows += file_rows(key, (*rest, *files))
            insert(connection, "files", rows)
        connection.execute("DETACH old")
    except duckdb.Error as error:  # nothing can be taken over: the old database is kept as it is
        unreadable = database(root).with_name("results.unreadable.duckdb")
        with replacing(unreadable) as aside:
            shutil.copyfile(build.old, aside)
        build.old = None
        log.warning(
            "the database could not be read (%s) and is rebuilt from the run folders; "
            "what it held about runs whose files are gone is only in %s",
            first_lines(error, 1),
            unreadable,
        )


def _old_rows(connection: DuckDBPyConnection, tables: list[str]) -> Iterator[tuple[str, str]]:
    """Each of these tables that the attached database `old` has, and the SELECT of its rows there."""
    for table in tables:
        columns = connection.execute(_COLUMNS, [table, loaded_into(table)]).fetchall()
        names = [name for (name,) in columns]
        # The other version may have no such table, or none of runs.
        if names and (table in OWNER or "run_id" in names):
            yield table, f"SELECT {', '.join(names)} FROM old.{table}"


def kind_of(key: Key) -> str:
    """Which of KINDS a key is of."""
    if key[0] == CERTIFICATES:
        return "certificate"
    return "node" if key[1].startswith(f"{NODES}/") else "run"


def named(keys: Collection[Key]) -> str:
    """`2 runs (a/1, a/2)`, or as many of them as fit in a message. Other kinds have hashes for names."""
    count = counted(len(keys), kind := kind_of(min(keys)))
    if kind != "run":
        return count
    names = ", ".join("/".join(key) for key in sorted(keys)[:_SHOWN])
    return f"{count} ({names}{', ...' if len(keys) > _SHOWN else ''})"
