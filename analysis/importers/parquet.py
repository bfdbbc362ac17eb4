"""Parquet; a mapping names its columns. Lines in messages are rows, counted from 1."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from analysis.importers import Importer
from analysis.importers._table import LogRow, LogTable, Refused, content_of


def read(file: Path) -> LogTable:
    """Read a Parquet file. Columns that hold no text that can be read are left out.

    Raises:
        Refused: it is not a Parquet file, or is truncated or damaged.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # Not pq.read_table, which takes no two columns of one name.
        source = pq.ParquetFile(pa.BufferReader(content_of(file)), page_checksum_verification=True).read()
        source.validate()
        names = source.column_names
    except (pa.ArrowException, OSError, ValueError) as error:  # a ValueError of names that are no text
        raise Refused(
            f"{file}:1: not a Parquet file, or a truncated one ({str(error).splitlines()[0]})"
        ) from error
    table = LogTable(file, twice={name for name, count in Counter(names).items() if count > 1})
    # pandas keeps an index that counts in the file's metadata alone.
    indexes = json.loads((source.schema.metadata or {}).get(b"pandas", b"{}")).get("index_columns", [])
    columns: dict[str, Sequence[Any]] = {
        index["name"]: range(index["start"], index["stop"], index["step"])
        for index in indexes
        if isinstance(index, dict) and index["name"]
    }
    for name, column in zip(names, source.columns, strict=True):
        moments = pa.types.is_timestamp(column.type)  # Python's hold no nanoseconds
        moments_known = column.cast(pa.timestamp("us", column.type.tz), safe=False) if moments else column
        try:
            columns[name] = moments_known.to_pylist()
        except ValueError as error:
            table.skip(1, f"column '{name}' cannot be read ({error})")
    rows = zip(*columns.values(), strict=True)
    table.rows = [
        LogRow(line, dict(zip(columns, values, strict=True))) for line, values in enumerate(rows, start=1)
    ]
    return table


importer = Importer(title="a Parquet file, columns named by a mapping", read=read)
