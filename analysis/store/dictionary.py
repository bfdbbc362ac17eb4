"""The tables and views of the database as a Markdown page: docs/schema.md, made of their comments."""

from __future__ import annotations

from analysis.store.database import in_memory

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
            for name, comment in connection.execute(relations).fetchall():
                parts += [f"### {name}\n", f"{comment}\n", "| column | type | what it is |", "|---|---|---|"]
                for column, kind, meaning in connection.execute(_COLUMNS, [name]).fetchall():
                    cell = (meaning or "").replace("|", "\\|")
                    parts.append(f"| `{column}` | {kind} | {cell} |")
                parts.append("")
    return "\n".join(parts)
