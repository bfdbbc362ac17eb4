"""CSV with a header line; a mapping names its columns."""

from __future__ import annotations

import csv
import io
from collections import Counter
from pathlib import Path

from analysis.importers import Importer
from analysis.importers._table import LogRow, LogTable, text_of
from model.record.units import counted


def read(file: Path) -> LogTable:
    """Read a CSV, with commas, semicolons or tabs.

    Columns without a name are left out, and so are rows of another width than the header's.

    Raises:
        Refused: it is empty or no text.
    """
    text, table = text_of(file), LogTable(file)
    delimiter = max(",;\t", key=text.lstrip().partition("\n")[0].count)
    reader = csv.reader(
        io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True, strict=True
    )
    header: list[str] = []
    try:
        for values in reader:
            if not header:
                header = [name.strip() for name in values]
                table.twice = {name for name, count in Counter(header).items() if count > 1}
            elif len(values) == len(header):
                named = {name: value for name, value in zip(header, values, strict=True) if name}
                table.rows.append(LogRow(reader.line_num, named))
            elif values:
                table.skip(reader.line_num, f"{counted(len(values), 'value')}, the header has {len(header)}")
    except csv.Error as error:
        table.skip(reader.line_num, f"{error}; nothing after it was read")
    if not text.endswith(("\n", "\r")):
        table.unended = reader.line_num
    return table


importer = Importer(title="a table with a header line, columns named by a mapping", read=read)
