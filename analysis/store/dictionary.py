"""The tables and views of the database as a Markdown page: docs/schema.md, made of their comments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from analysis.store.database import in_memory

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_START = """\
# The database

`ROOT/results.duckdb`, which `runner collect` makes of the run folders. Query the views, which are derived
from the tables: `runs` has one row per run, `steps` one per step of a run. A run's key is (study, run_id).
Times are UTC. Unknown is NULL, never a guess. `runner schema database` prints this page.

A reader sees the state at the time of opening, as a whole: a collect writes a new file and puts it in the
place of the old one, so that neither waits for the other. Open the database with `runner sql`, or from Python
with `analysis.open("runs")`. What other programs write to it is lost at the next collect: run folders are the
truth.
"""
_VIEWS = "SELECT view_name, comment FROM duckdb_views() WHERE NOT internal ORDER BY view_oid"
_TABLES = "SELECT table_name, comment FROM duckdb_tables() WHERE NOT internal ORDER BY table_oid"
_COLUMNS = """\
SELECT column_name, lower(data_type), comment FROM duckdb_columns()
WHERE table_name = $1 ORDER BY column_index"""


def dictionary() -> str:
    """The page, of this version's schema."""
    with in_memory() as connection:
        parts = [_START]
        for title, relations in (("Views", _VIEWS), ("Tables", _TABLES)):
            parts.append(f"## {title}\n")
            parts += [_relation(connection, *row) for row in connection.execute(relations).fetchall()]
    return "\n".join(parts)


def _relation(connection: DuckDBPyConnection, name: str, comment: str) -> str:
    rows = connection.execute(_COLUMNS, [name]).fetchall()
    lines = [f"| `{column}` | {kind} | {_cell(text)} |" for column, kind, text in rows]
    head = ["| column | type | what it is |", "|---|---|---|"]
    return "\n".join([f"### {name}\n", f"{comment}\n", *head, *lines, ""])


def _cell(text: str | None) -> str:
    return (text or "").replace("|", "\\|")
