"""What the tables and views of a database are, by their comments; as a Markdown page: docs/schema.md."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

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
_RELATIONS = """\
SELECT r.name, r.comment, r.is_view, c.column_name, lower(c.data_type), c.comment
FROM (
    SELECT database_oid, table_oid AS oid, table_name AS name, comment, false AS is_view
    FROM duckdb_tables() WHERE NOT internal AND NOT temporary
    UNION ALL SELECT database_oid, view_oid, view_name, comment, true
    FROM duckdb_views() WHERE NOT internal AND NOT temporary
) r JOIN duckdb_columns() c ON c.database_oid = r.database_oid AND c.table_oid = r.oid
ORDER BY r.is_view DESC, r.oid, c.column_index"""


class Column(NamedTuple):
    """A column, with the comment that says what it is."""

    name: str
    type: str
    meaning: str | None


class Relation(NamedTuple):
    """A table or view."""

    name: str
    meaning: str | None
    is_view: bool
    columns: tuple[Column, ...]


def relations(connection: DuckDBPyConnection) -> list[Relation]:
    """The views of an open database, and then its tables, each in the order in which they were made."""
    rows = connection.execute(_RELATIONS).fetchall()
    return [
        Relation(name, meaning, is_view, tuple(Column(*row[3:]) for row in columns))
        for (name, meaning, is_view), columns in groupby(rows, key=lambda row: row[:3])
    ]


def dictionary() -> str:
    """The page, of this version's schema."""
    with in_memory() as connection:
        described = relations(connection)
    parts = [_START]
    for title, are_views in (("Views", True), ("Tables", False)):
        parts.append(f"## {title}\n")
        for relation in (relation for relation in described if relation.is_view == are_views):
            parts += [f"### {relation.name}\n", f"{relation.meaning}\n"]
            parts += ["| column | type | what it is |", "|---|---|---|"]
            for column in relation.columns:
                cell = (column.meaning or "").replace("|", "\\|")
                parts.append(f"| `{column.name}` | {column.type} | {cell} |")
            parts.append("")
    return "\n".join(parts)
