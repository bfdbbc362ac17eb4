"""Run folders into DuckDB, SQL over it, and report pages. Imports model, never runner."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


def open(root: str | Path = "runs") -> DuckDBPyConnection:  # noqa: A001  it is called as analysis.open
    """Open the results of a workspace: `analysis.open("runs").sql("SELECT * FROM runs").df()`.

    docs/schema.md has the views `runs` and `steps`, the tables, and the unit of each column. The answer to
    `sql` becomes a pandas (`.df()`), polars (`.pl()`) or Arrow (`.to_arrow_table()`) table, or tuples
    (`.fetchall()`).

    What is read is the state at the time of opening: a collect does not wait for readers, nor they for it,
    and what it brings is seen by those who open the results after it. SQL can neither change the database nor
    reach other files or the network. A table of your own takes part after `connection.register(name, table)`.
    A `connection.cursor()` has to say `results.runs`.

    Args:
        root: the workspace, which `runner collect` has collected.

    Raises:
        UserError: nothing was collected yet, or the database is of another version.
    """
    from analysis.store.database import open_for_reading

    return open_for_reading(Path(root))
