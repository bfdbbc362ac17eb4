"""Query the database with one SELECT, read-only and without access to other files.

Examples:
  runner sql "select label, seed, final_loss from runs where outcome = 'completed'"
  runner sql "select * from steps" --format csv > steps.csv
  runner sql --list
  runner sql @speed --study backends
  runner sql @reported --study experiments/seeds/002.yaml
"""

from __future__ import annotations

import sys
from typing import Annotated, Literal

import typer

from model.record.errors import UserError
from runner.commands._console import table
from runner.commands._options import Settings, Timeout, refuse_empty_name, study_name


def command(
    query: Annotated[
        str | None,
        typer.Argument(metavar="QUERY", help="One SELECT on runs, steps, attempts, ..., or @NAME."),
    ] = None,
    form: Annotated[
        Literal["table", "csv", "json", "parquet", "latex"], typer.Option("--format", help="Output format.")
    ] = "table",
    study: Annotated[
        str | None,
        typer.Option(
            "--study",
            metavar="STUDY",
            help="The study that @NAME queries, or --list is for: its name or file.",
            callback=refuse_empty_name,
        ),
    ] = None,
    listed: Annotated[
        bool, typer.Option("--list", help="List the named queries of the task of the study.")
    ] = False,
    timeout: Timeout = 300,
    memory: Annotated[
        float,
        typer.Option("--memory", metavar="GIB", min=0.25, max=4096, help="Use at most this much memory."),
    ] = 4,
) -> None:
    from analysis.query.child import in_child
    from analysis.query.formats import query as answer
    from analysis.store.database import can_collect, open_for_reading, studies

    root = Settings.root
    if study is not None and (listed or (query or "").startswith("@")):
        study = study_name(study, studies(root))
    if listed or query == "@":
        from analysis.report.named import queries_of

        queries = queries_of(root, study).items()
        table(("name", "answers"), [(f"@{name}", query.text) for name, query in queries])
        return
    if root.is_dir() and not can_collect(root):  # nobody can collect there for this user
        try:
            open_for_reading(root).close()
        except UserError:  # it has no database of this version
            from runner.execute.reconcile import collected

            collected(root)
    if query is None:
        raise UserError("give a SELECT, or the @NAME of a query; `runner sql --list` lists the names")
    sql, of_study = query, study
    if query.startswith("@"):  # a named query, answered as in its study's report
        from analysis.report.named import find

        sql, of_study = find(root, query.removeprefix("@"), study)
    elif study is not None:
        raise UserError("--study goes with @NAME; in a SELECT, write where study = '...'")
    else:
        try:
            query.encode()
        except UnicodeEncodeError as error:
            raise UserError(
                "the query is no UTF-8 text: set a locale of UTF-8, such as LC_ALL=C.UTF-8"
            ) from error
    if form == "parquet" and on_a_terminal():
        raise UserError("Parquet is not for a terminal: add > FILE.parquet")
    in_child(lambda: answer(root, sql, form, of_study), timeout, int(memory * 2**30))


def on_a_terminal() -> bool:
    """Whether a person would see the answer as it is written."""
    return sys.stdout.isatty()
