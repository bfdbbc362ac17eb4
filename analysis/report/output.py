"""The last lines that attempts printed, as the pages of runs show them and as a report carries them.

They are read from the run folders when the report is made, and kept in no database: what a program prints may
hold what others must not read, so that a report without them can be made from the same database.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, cast

from analysis.report.rows import Printed
from analysis.store.database import first_lines
from analysis.store.records import write_table
from analysis.store.tables import insert
from model.record.errors import UserError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

MOST_LINES, MOST_CHARACTERS = 30, 4000  # of one stream of one attempt
_STREAMS = ("stdout", "stderr")
_TAIL_BYTES = 4 * MOST_CHARACTERS  # a character takes at most four
FILE = "output.parquet"
_TABLE = """\
CREATE TEMP TABLE output (
    study VARCHAR, run_id VARCHAR, attempt INTEGER, stream VARCHAR, size_bytes BIGINT, text VARCHAR)"""
SQL = "SELECT * FROM output WHERE study = $study ORDER BY run_id, attempt, stream DESC"
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-_])")  # of a terminal
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def tail(content: bytes) -> str:
    """The last lines as a terminal shows them in the end: without colours and what was overwritten."""
    lines = _ESCAPE.sub("", content.decode("utf-8", "replace")).rstrip().split("\n")[-MOST_LINES:]
    shown = [line.rstrip("\r").rpartition("\r")[2] for line in lines]
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", "\n".join(shown))[-MOST_CHARACTERS:]


def read(root: Path, study: str, attempts: Iterable[tuple[str, int]]) -> Iterator[Printed]:
    """A row for each file of output that these attempts left and that is not empty.

    Args:
        root: the workspace.
        attempts: ids of runs, and numbers of their attempts.
    """
    for run_id, attempt in attempts:
        for stream in _STREAMS:
            size, content = _end(root / study, run_id, f"attempt-{attempt}", f"{stream}.log")
            if size:
                yield {
                    "study": study,
                    "run_id": run_id,
                    "attempt": attempt,
                    "stream": stream,
                    "size_bytes": size,
                    "text": tail(content),
                }


def _end(folder: Path, *names: str) -> tuple[int, bytes]:
    """Size and last bytes of a plain file that no link leads to; nothing if it is not one or cannot be read.

    Args:
        names: of the folders below, and of the file. In a root of several users a link among them may be of
            somebody who cannot read what it leads to, but will read the report.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK
    try:
        descriptor = os.open(folder, flags)
        for name in names:
            above = descriptor
            try:
                descriptor = os.open(name, flags | os.O_NOFOLLOW, dir_fd=above)
            finally:
                os.close(above)
    except OSError:
        return 0, b""
    with open(descriptor, "rb") as file:  # noqa: PTH123  a descriptor
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return 0, b""
        file.seek(max(0, status.st_size - _TAIL_BYTES))
        return status.st_size, file.read(_TAIL_BYTES)


def attach(connection: DuckDBPyConnection, rows: Iterable[Printed]) -> None:
    """Make rows of `read` a table of this connection, named output."""
    connection.execute(_TABLE)
    insert(connection, "output", [dict(row) for row in rows])


def attached(connection: DuckDBPyConnection) -> bool:
    """Whether the connection has that table: without it, a report shows nothing that was printed."""
    return bool(connection.execute("FROM duckdb_tables() WHERE table_name = 'output'").fetchall())


def carry(connection: DuckDBPyConnection, records: Path) -> None:
    """Write the table to the folder of a report's records, if there is one."""
    if attached(connection):
        write_table(connection, records / FILE, "SELECT * FROM output ORDER BY ALL")


def load(connection: DuckDBPyConnection, records: Path) -> None:
    """The reverse of `carry`. Raises UserError if the file cannot be used."""
    import duckdb
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = records / FILE
    if not path.is_file() or path.is_symlink():
        return
    try:
        attach(connection, cast("list[Printed]", pq.ParquetFile(path).read().to_pylist()))
    except (pa.ArrowException, OSError, duckdb.Error) as error:
        raise UserError(f"{path}: {first_lines(error, 1)}") from error
