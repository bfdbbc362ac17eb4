"""Query the database with one SELECT, read-only and without access to other files.

Examples:
  runner sql "select label, seed, final_loss from runs"
  runner sql "select * from steps" --format csv > steps.csv
"""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from runner.commands._options import Settings

_DUCKDB_SHARE = 0.5  # of the memory; the rest is for what DuckDB does not count, and for writing


def command(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="One SELECT on runs, steps, attempts, ...")],
    form: Annotated[
        Literal["table", "csv", "json", "parquet", "latex"], typer.Option("--format", help="Output format.")
    ] = "table",
    timeout: Annotated[
        int, typer.Option("--timeout", metavar="SECONDS", min=0, help="Give up after this; 0 for never.")
    ] = 300,
    memory: Annotated[
        float,
        typer.Option("--memory", metavar="GIB", min=0.25, max=4096, help="Use at most this much memory."),
    ] = 4,
) -> None:
    from analysis.query.child import in_child
    from analysis.query.formats import query as answer

    limit = int(memory * 2**30)
    in_child(lambda: answer(Settings.root, query, form, int(limit * _DUCKDB_SHARE)), timeout, limit)
