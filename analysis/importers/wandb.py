"""Histories exported from Weights & Biases: CSV, JSONL or Parquet; a mapping names the metrics.

Either a history with `_step`, `_timestamp` and `_runtime`, or what a chart of the website exports as CSV:
a column of the chart's x axis, most often `Step`, and a column `RUN - METRIC` for each run.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from analysis.importers import Importer, csv, parquet
from analysis.importers._mapping import MappedColumn, Mapping
from analysis.importers._table import LogRow, LogTable, Refused, json_lines
from analysis.stats import grouped

_BY_ENDING = {".csv": csv.read, ".jsonl": json_lines, ".json": json_lines, ".parquet": parquet.read}
_STEP = {"Step": "_step"}  # what the website and a history call it
_APART = " - "  # between a run and a metric
_EXTREMES = ("__MIN", "__MAX")  # of what a chart draws as one point


def read(file: Path) -> LogTable:
    """Read an exported history. Raises Refused."""
    if file.suffix not in _BY_ENDING:
        raise Refused(
            f"{file}: no exported history (valid: {', '.join(_BY_ENDING)}); write one with "
            "wandb.Api().run(PATH).history(samples=10**7).to_csv(FILE)"
        )
    table = _BY_ENDING[file.suffix](file)
    axis, *names = table.columns() or [""]
    of_runs = [name for name in names if _APART in name and not name.endswith(_EXTREMES)]
    if not of_runs or any(_APART not in name for name in names):
        return table
    if twice := table.twice.intersection(of_runs):
        raise Refused(
            f"{file}:1: two columns are called '{min(twice)}', of two runs of one name; rename one of them"
        )

    # A chart's export has a row for each step: make it one for each run and step.
    rows: list[LogRow] = []
    for run, columns in grouped(of_runs, lambda name: name.rpartition(_APART)[0]).items():
        for row in table.rows:
            values = {name.rpartition(_APART)[2]: row.values[name] for name in columns}
            if any(value not in (None, "") for value in values.values()):
                rows.append(LogRow(row.line, {_STEP.get(axis, axis): row.values[axis], "run": run, **values}))
    return replace(table, rows=rows, run="run")


importer = Importer(
    title="a history exported from Weights & Biases as CSV, JSONL or Parquet, metrics named by a mapping",
    read=read,
    mapping=Mapping(
        columns={
            "time": MappedColumn(column="_timestamp", unit="s"),
            "elapsed_seconds": MappedColumn(column="_runtime"),
        }
    ),
)
