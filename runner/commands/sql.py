"""Query the database, read-only and without access to other files."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from runner.commands._options import Settings


def command(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="SQL on runs, steps, attempts, ...")],
    form: Annotated[
        Literal["table", "csv", "json", "parquet", "latex"], typer.Option("--format", help="Output format.")
    ] = "table",
) -> None:
    from analysis.query.formats import query as answer

    answer(Settings.root, query, form)
