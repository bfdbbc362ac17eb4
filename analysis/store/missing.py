"""Rows whose files are gone, as when a scratch filesystem deletes what is old: they are kept and marked.

A run whose ledger does not continue the one that was read is another run in the same folder, and replaces it.
"""

from __future__ import annotations

import hashlib
import logging
import re
import shutil
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from analysis.store.database import Build, database, first_lines
from analysis.store.ingest import rows_of
from analysis.store.scan import CERTIFICATES, NODES, FileState, Key, Seen
from analysis.store.steps import LINES, MEASURES, SAID, STAGE, derive, stage
from analysis.store.tables import OF_NODES, OWNER, Known, Ledger, Row, insert, read_ledger
from model.record.config import RunConfig
from model.record.files import dumps, open_regular, replacing
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
# By table: columns and rows to keep, and where they come back. An attempt in flight had nothing to say yet.
_KEPT = {
    "attempts": ("*", "t.outcome IS NOT NULL", "attempts"),
    "step_floor": ("*", "true", "step_floor"),
    "audits": ("*", "true", "audits"),
    "step_profile": ("*", "true", "step_profile"),
    "decoding": ("*", "true", "decoding"),
    "kernels": ("*", "true", "kernels"),
    "probes": ("*", "true", "probes"),
    "step_records": (", ".join(SAID), "true", STAGE),
}
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
    connection: DuckDBPyConnection, root: Path, seen: dict[Key, Seen], ledger: Ledger
) -> dict[Key, tuple[FileState, ...]]:
    """The files that are gone since they were read, of runs with rows and of certificates of attempts."""
    gone: dict[Key, list[FileState]] = {}
    for key, before in ledger.items():
        there = {file.path for file in seen[key].files} if key in seen else set()
        if files := [file for path, file in before.items() if path not in there]:
            gone[key] = files
    if not gone:
        return {}
    kept = set(connection.execute(_WORTH_KEEPING).fetchall())
    if connection.execute(_KEY_OF_KERNELS).fetchall():  # a database of an earlier version may have none
        kept |= set(connection.execute(_OF_KERNELS).fetchall())
    now = datetime.now(UTC).replace(tzinfo=None, microsecond=0)
    return {
        key: tuple(file._replace(missing_since=file.missing_since or now) for file in files)
        for key, files in gone.items()
        if key in kept and not _is_another(root, key, ledger[key])
    }


def _is_another(root: Path, key: Key, files: Known) -> bool:
    """Whether the folder has a ledger that is not the one that was read, nor continues it."""
    path = "/".join((*key, "ledger.jsonl"))
    if (before := files.get(path)) is None:
        return False
    try:
        with open(root / path, "rb", opener=open_regular) as file:
            content = file.read()
    except OSError:
        return False
    return hashlib.sha256(content[: before.size_bytes]).hexdigest() != before.sha256


@contextmanager
def keeping(connection: DuckDBPyConnection, folders: Iterable[Seen]) -> Iterator[None]:
    """Put the rows of attempts whose files are gone back after the body, which reads the rest of the run."""
    import pyarrow as pa

    rows: list[tuple[str, str, int | None]] = []
    for folder in folders:
        for file in folder.lost:
            match = _OF_ATTEMPT.search(file.path)
            rows.append((*folder.key, int(match[1]) if match else None))
    if not rows:
        yield
        return
    names = ("study", "run_id", "attempt")
    connection.register("lost", pa.table([list(column) for column in zip(*rows, strict=True)], names))
    for table, (columns, condition, _) in _KEPT.items():
        connection.execute(_KEEP.format(table=table, columns=columns, condition=condition))
    connection.unregister("lost")
    yield
    for table, (_, _, into) in _KEPT.items():
        connection.execute(_RESTORE.format(table=table, into=into))


def inherit(
    build: Build, root: Path, seen: dict[Key, Seen], wanted: str, tables: tuple[str, ...], drop: bool
) -> None:
    """Take over what no file says any more from the database that a new one replaces.

    Args:
        seen: what is on disk.
        wanted: SQL condition on the table `files`.
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
            ledger = read_ledger(connection, wanted.replace("$1", "NULL"))
            lost = find_lost(connection, root, seen, ledger)
        finally:
            connection.execute(f"USE {new}")
        if lost and drop:
            log.warning("--rebuild drops %s: their files are gone", named(lost))
        elif lost:
            own_tables = [table for table in tables if table not in ("files", *LINES, *MEASURES)]
            _copy(connection, list(lost), [*own_tables, "step_records"])
            rows: list[Row] = []
            for key, files in lost.items():
                paths = {file.path for file in files}
                # The other files of a run are not read again where its run.json is gone.
                whole = any(path.endswith("/run.json") for path in paths)
                rest = [file for path, file in ledger[key].items() if whole and path not in paths]
                rows += rows_of(key, (*rest, *files))
            insert(connection, "files", rows)
        connection.execute("DETACH old")
    except duckdb.Error as error:  # nothing can be taken over: the old database is kept as it is
        aside = database(root).with_name("results.unreadable.duckdb")
        with replacing(aside) as written:
            shutil.copyfile(build.old, written)
        build.old = None
        log.warning(
            "the database could not be read (%s) and is rebuilt from the run folders; "
            "what it held about runs whose files are gone is only in %s",
            first_lines(error, 1),
            aside,
        )


def _copy(connection: DuckDBPyConnection, keys: list[Key], tables: list[str]) -> None:
    """Copy the rows of these runs or certificates from the attached database `old`, by column name."""
    import pyarrow as pa

    columns = [list(column) for column in zip(*keys, strict=True)]
    connection.register("wanted", pa.table(columns, ["study", "run_id"]))
    connection.execute("BEGIN")
    try:
        stage(connection)
        for table in tables:
            into = STAGE if table == "step_records" else table
            names = [row[0] for row in connection.execute(_COLUMNS, [table, into]).fetchall()]
            owner = OWNER.get(table, "(study, run_id)")
            if not names or (table not in OWNER and "run_id" not in names):
                continue  # the other version has no such table, or none of runs
            connection.execute(
                f"INSERT INTO {into} BY NAME SELECT {', '.join(names)} FROM old.{table} "
                f"WHERE {owner} IN (SELECT (study, run_id) FROM wanted)"
            )
        if "run_records" in tables:
            complete(connection)
        derive(connection)
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")
    connection.unregister("wanted")


def complete(connection: DuckDBPyConnection) -> None:
    """Add to configurations of older versions the settings that came later, as reading a run.json does.

    Otherwise a run whose files are gone would differ in them from its neighbours, and be compared with none.

    Args:
        connection: with the keys of these runs in `wanted`.
    """
    import pyarrow as pa

    rows = connection.execute(
        "SELECT study, run_id, config::VARCHAR FROM run_records WHERE imported IS NULL "
        "AND (study, run_id) IN (SELECT (study, run_id) FROM wanted)"
    ).fetchall()
    whole = []
    for study, run_id, config in rows:
        with suppress(ValidationError):  # of a newer version: it stays as it is
            completed = RunConfig.model_validate_json(config).model_dump(mode="json")
            whole.append((study, run_id, dumps(completed)))
    if not whole:
        return
    columns = [list(column) for column in zip(*whole, strict=True)]
    connection.register("whole", pa.table(columns, ["study", "run_id", "config"]))
    connection.execute(
        "UPDATE run_records r SET config = w.config FROM whole w "
        "WHERE w.study = r.study AND w.run_id = r.run_id"
    )
    connection.unregister("whole")


def of_kind(key: Key) -> str:
    """Which of KINDS it is."""
    if key[0] == CERTIFICATES:
        return "certificate"
    return "node" if key[1].startswith(f"{NODES}/") else "run"


def named(keys: Collection[Key]) -> str:
    """`2 runs (a/1, a/2)`, or as many of them as fit in a message. Other kinds have hashes for names."""
    if (what := of_kind(min(keys))) != "run":
        return counted(len(keys), what)
    names = ", ".join("/".join(key) for key in sorted(keys)[:_SHOWN])
    return f"{counted(len(keys), what)} ({names}{', ...' if len(keys) > _SHOWN else ''})"
