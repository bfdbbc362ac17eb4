"""Runs of which the root has a report's records in place of a folder, with their certificates and nodes.

`collect REPORT` keeps what the report carries in STUDY/.reports, a folder a report. What the root has itself
takes precedence, also where its files are gone since; then the report that was collected last.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from analysis.store import scan
from analysis.store.database import Build
from analysis.store.ingest import rows_of
from analysis.store.missing import complete
from analysis.store.records import open_records, selections
from analysis.store.scan import CERTIFICATES, NODES, REPORTS, Key, Seen
from analysis.store.steps import LINES, MEASURES, STAGE, derive, label, stage
from analysis.store.tables import OWNER, forget, insert, read_ledger
from model.record.config import RunConfig
from model.record.errors import UserError
from model.record.files import sha256
from model.record.folder import folders
from model.record.records import DesignRecord, Override, RunRecord

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_PLAN = ("run_id", "repeat", "scale", "factors", "config", "design", "overridden", "imported")
log = logging.getLogger(__name__)
_KEYS = f"""\
SELECT study, run_id FROM run_records ANTI JOIN removed_runs USING (study, run_id)
UNION ALL SELECT study, '{NODES}/' || key FROM nodes
UNION ALL SELECT '{CERTIFICATES}', key FROM certificates"""


def planned(root: Path, study: str) -> Iterator[RunRecord]:
    """The plans of the runs that reports know, as far as these carry them and this version can read them."""
    for row in scan.reported_plans(root, study, *_PLAN):
        if row["imported"] is None:
            with suppress(ValidationError):
                yield RunRecord.model_construct(
                    **{name: row[name] for name in ("run_id", "repeat", "scale")},
                    factors=json.loads(row["factors"]),
                    config=RunConfig.model_validate_json(row["config"]),
                    design=row["design"] and DesignRecord.model_validate_json(row["design"]),
                    overridden={
                        name: Override.model_validate(change)
                        for name, change in json.loads(row["overridden"] or "{}").items()
                    },
                )


def bring(build: Build, root: Path, study: str | None) -> None:
    """Bring what only reports know up to date, after all that the root has itself.

    Raises:
        UserError: the records of a report cannot be read.
    """
    connection = build.connection
    collected = read_ledger(connection, f"run_id LIKE '{REPORTS}/%'")
    names = [study] if study else sorted({*folders(root), *(name for name, _ in collected)})
    changed = False
    for name in names:
        here = scan.reports(root, name)
        before = {key: next(iter(files.values())) for key, files in collected.items() if key[0] == name}
        if {key: file._replace(sha256="") for key, file in before.items()} == {
            report.key: report.files[0] for report in here
        }:
            continue
        changed = True
        of_these = read_ledger(connection, f"path LIKE $1 || '/{REPORTS}/%'", name)
        tables = [table for table in selections(connection, name) if table != "step_records"]
        forget(connection, [*of_these], (*tables, *LINES, *MEASURES))
        for report in reversed(here):
            _add(connection, root, report)
    if changed:
        build.changed = True
        label(connection)


def _add(connection: DuckDBPyConnection, root: Path, report: Seen) -> None:
    """Add the rows of what nobody else knows; a report that cannot be read is quarantined."""
    study, place = report.key
    file = report.files[0]._replace(sha256=sha256(root / report.files[0].path))
    insert(connection, "files", rows_of(report.key, [file]))
    try:
        records = open_records((root / file.path).parent)
    except UserError as error:
        log.warning("%s: what it knows is left out: %s; collect the report again", file.path, error)
        lost = {"study": study, "run_id": place, "path": file.path, "reason": str(error)}
        insert(connection, "quarantine", [lost])
        return
    with closing(records):
        carried = set(records.execute(_KEYS).fetchall())
        if new := sorted(carried - read_ledger(connection).keys()):
            _copy(records, connection, study, new)
            insert(connection, "files", [row for key in new for row in rows_of(key, [file])])


def _copy(records: DuckDBPyConnection, into: DuckDBPyConnection, study: str, new: Sequence[Key]) -> None:
    """Copy the rows of these runs, certificates and nodes, and derive what follows from them."""
    import pyarrow as pa

    columns = [list(column) for column in zip(*new, strict=True)]
    into.register("wanted", pa.table(columns, ["study", "run_id"]))
    stage(into)
    for table, sql in selections(records, study).items():
        if table != "files":
            to, key = STAGE if table == "step_records" else table, OWNER.get(table, "(study, run_id)")
            into.register("carried", records.sql(sql).to_arrow_table())
            into.execute(
                f"INSERT INTO {to} BY NAME SELECT * FROM carried "
                f"WHERE {key} IN (SELECT (study, run_id) FROM wanted)"
            )
            into.unregister("carried")
    complete(into)
    derive(into)
    into.unregister("wanted")
