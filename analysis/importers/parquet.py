"""Parquet; a mapping names its columns. Lines in messages are rows, counted from 1."""

from __future__ import annotations

from pathlib import Path

from analysis.importers import Importer
from analysis.logs.table import Refused, Row, Table, content_of


def read(file: Path) -> Table:
    """Read a Parquet file. Raises Refused if it is not one, or is truncated."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(pa.BufferReader(content_of(file)))
    except (pa.ArrowException, OSError) as error:
        raise Refused(
            f"{file}:1: not a Parquet file, or a truncated one ({str(error).splitlines()[0]})"
        ) from error
    return Table(file, [Row(line, values) for line, values in enumerate(table.to_pylist(), start=1)])


importer = Importer(title="a Parquet file, columns named by a mapping", read=read)
