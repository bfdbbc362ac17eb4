"""CSV with a header line; a mapping names its columns."""

from __future__ import annotations

import csv
import io
from collections import Counter
from pathlib import Path

from analysis.importers import Importer
from analysis.logs.table import Refused, Row, Table, text_of
from model.units import counted


def read(file: Path) -> Table:
    """Read a CSV, with commas, semicolons or tabs. Rows of another width than the header's are left out.

    Raises:
        Refused: it is empty or no text, or its header names a column twice.
    """
    text, table = text_of(file), Table(file)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=_delimiter(text), strict=True)
    header: list[str] = []
    try:
        for values in reader:
            if not header:
                header = _header(file, values)
            elif len(values) == len(header):
                table.rows.append(Row(reader.line_num, dict(zip(header, values, strict=True))))
            elif values:
                table.skip(reader.line_num, f"{counted(len(values), 'value')}, the header has {len(header)}")
    except csv.Error as error:
        table.skip(reader.line_num, f"{error}; nothing after it was read")
    return table


def _delimiter(text: str) -> str:
    first = text.partition("\n")[0]
    return max(",;\t", key=first.count)


def _header(file: Path, values: list[str]) -> list[str]:
    for name, count in Counter(values).most_common(1):
        if count > 1:
            raise Refused(f"{file}:1: two columns are called '{name}'")
    return values


importer = Importer(title="a table with a header line, columns named by a mapping", read=read)
