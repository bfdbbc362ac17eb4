"""Runs of which the root has a report's records in place of a folder, with their certificates and nodes.

`collect REPORT` keeps what the report carries in STUDY/.reports, a folder a report. What the root has itself
takes precedence, also where its files are gone since; then the report that was collected last.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.store import scan
from analysis.store.copying import copy_rows
from analysis.store.database import Build, first_lines
from analysis.store.ingest import rows_of
from analysis.store.records import open_records, selections
from analysis.store.scan import CERTIFICATES, NODES, REPORTS, RUNS_OF_REPORT, UNHASHED, Key
from analysis.store.steps import LINES, MEASURES, label
from analysis.store.tables import OF_REPORTS, Known, forget, insert, read_ledger, registered
from model.record.config import RunConfig
from model.record.errors import UserError
from model.record.records import DesignRecord, Override, RunRecord

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_ID = {"run_records": "run_id", "removed_runs": "run_id", "nodes": "key", "certificates": "key"}
_PLAN = ("run_id", "repeat", "scale", "factors", "config", "design", "overridden", "imported")
log = logging.getLogger(__name__)


def planned(root: Path, study: str) -> Iterator[RunRecord]:
    """The plans of the runs that reports know, as far as these carry them and this version can read them."""
    for row in scan.reported_plans(root, study, *_PLAN):
        if row["imported"] is None:
            with suppress(ValueError, TypeError, AttributeError):
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


def bring(build: Build, root: Path) -> None:
    """Bring what only reports know up to date, after all that the root has itself."""
    connection = build.connection
    before = read_ledger(connection, OF_REPORTS)
    here = {report.key: report for report in scan.reports(root, None)}
    if not (before or here):
        return
    own = read_ledger(connection, f"NOT {OF_REPORTS}").keys()

    # Which report each comes from: the last of its study; a certificate, the last of all.
    wanted: dict[Key, Key] = {}
    problems: dict[Key, str] = {}
    for key in here:
        try:
            carried = _keys(root / key[0] / key[1], key[0])
        except (UserError, OSError) as error:
            problems[key] = str(error)
        else:
            wanted |= dict.fromkeys(carried - own, key)
    wanted = {key: report for key, report in wanted.items() if key not in here}

    def of_report(files: Known) -> Key:
        study, place, name, _ = min(files).split("/")
        return study, f"{place}/{name}"

    states = {
        key: {path: file._replace(sha256="") for path, file in before[key].items()}
        for key in before
        if key[1].startswith(f"{REPORTS}/")
    }
    there = {key: {file.path: file for file in report.files} for key, report in here.items() if report.files}
    now = {key: of_report(files) for key, files in before.items() if key not in states}
    if (states, now) == (there, wanted):
        return
    for study, place in states.keys() - here.keys():
        log.warning("%s/%s: its records are gone, and so are the runs that it alone knew", study, place)
    tables = [table for table in selections(connection, None) if table != "step_records"]
    refused = connection.execute(f"SELECT study, run_id FROM quarantine WHERE run_id LIKE '{REPORTS}/%'")
    forget(connection, [*before, *refused.fetchall()], (*tables, *LINES, *MEASURES))
    for key, report in here.items():
        files = [file._replace(sha256=UNHASHED) for file in report.files]
        insert(connection, "files", rows_of(key, files))
        if key not in problems and (new := [name for name, owner in wanted.items() if owner == key]):
            try:
                with closing(open_records(root / key[0] / key[1])) as records:
                    copy_rows(connection, new, _carried_rows(records, connection, key[0]))
            except (UserError, OSError) as error:
                problems[key] = str(error)
            else:
                (file,) = (file for file in files if file.path.endswith(f"/{RUNS_OF_REPORT}"))
                insert(connection, "files", [row for name in new for row in rows_of(name, [file])])
        if reason := problems.get(key):
            log.warning(
                "%s/%s: what it alone knows is left out (%s): collect that report again", *key, reason
            )
            row = {"study": key[0], "run_id": key[1], "path": "/".join(key), "reason": reason}
            insert(connection, "quarantine", [row])
    build.changed = True
    label(connection)


def _keys(folder: Path, study: str) -> set[Key]:
    """The keys of what a report carries, but of runs that its study no longer had.

    Raises:
        UserError: its records cannot be read, or are not those that were collected.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    if scan.digest(folder) != folder.name.partition("-")[2]:
        raise UserError("its records have changed since")
    try:
        ids, removed, nodes, certificates = (
            set(pq.read_table(folder / f"{table}.parquet", columns=[column])[0].to_pylist())
            for table, column in _ID.items()
        )
    except pa.ArrowException as error:
        raise UserError(first_lines(error, 1)) from error
    runs = {(study, run_id) for run_id in ids - removed}
    return runs | {(study, f"{NODES}/{key}") for key in nodes} | {(CERTIFICATES, key) for key in certificates}


def _carried_rows(
    records: DuckDBPyConnection, into: DuckDBPyConnection, study: str
) -> Iterator[tuple[str, str]]:
    """Each table of a report's records, and the SELECT of its rows, in the database that they go to."""
    for table, sql in selections(records, study).items():
        if table != "files":
            with registered(into, "carried", records.sql(sql).to_arrow_table()):
                yield table, "SELECT * FROM carried"
