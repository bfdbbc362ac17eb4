"""Copies rows of runs, certificates and nodes from other records into a database that is being built."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from pydantic import ValidationError

from analysis.store.scan import Key
from analysis.store.steps import derive, loaded_into, stage
from analysis.store.tables import KEY, OWNER, keys_table, registered
from model.record.config import RunConfig
from model.record.files import dumps

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


def copy_rows(
    connection: DuckDBPyConnection, keys: Collection[Key], sources: Iterable[tuple[str, str]]
) -> None:
    """Copy the rows of these runs, certificates and nodes, and derive what follows from them.

    Args:
        sources: a base table or `step_records`, and the SELECT that gives rows of it; asked for one by one.
    """
    with registered(connection, "wanted", keys_table(keys)):
        stage(connection)
        for table, select in sources:
            connection.execute(
                f"INSERT INTO {loaded_into(table)} BY NAME SELECT * FROM ({select}) "
                f"WHERE {OWNER.get(table, KEY)} IN (SELECT study, run_id FROM wanted)"
            )
        _complete_configurations(connection)
        derive(connection)


def _complete_configurations(connection: DuckDBPyConnection) -> None:
    """Add to configurations of older versions the settings that came later, as reading a run.json does.

    Otherwise such a run would differ in them from its neighbours, and be compared with none. The runs are
    those in `wanted`.
    """
    import pyarrow as pa

    rows = connection.execute(
        "SELECT study, run_id, config::VARCHAR FROM run_records WHERE imported IS NULL "
        "AND (study, run_id) IN (SELECT (study, run_id) FROM wanted)"
    ).fetchall()
    completed = []
    for study, run_id, config in rows:
        with suppress(ValidationError):  # of a newer version: it stays as it is
            settings = RunConfig.model_validate_json(config).model_dump(mode="json")
            completed.append((study, run_id, dumps(settings)))
    if not completed:
        return
    columns = [list(column) for column in zip(*completed, strict=True)]
    with registered(connection, "completed", pa.table(columns, ["study", "run_id", "config"])):
        connection.execute(
            "UPDATE run_records r SET config = c.config FROM completed c "
            "WHERE c.study = r.study AND c.run_id = r.run_id"
        )
