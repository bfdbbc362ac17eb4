"""Runs of which the root has a report's records in place of a folder, with their certificates and nodes.

`collect REPORT` keeps what the report carries in STUDY/.reports, a folder a report. What the root has itself
takes precedence, also where its files are gone since; then the report that was collected last.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Collection, Iterable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from analysis.store import scan
from analysis.store.copying import copy_rows
from analysis.store.database import Build, first_lines
from analysis.store.ingest import file_rows
from analysis.store.records import open_records, selections
from analysis.store.scan import (
    CERTIFICATES,
    NODES,
    REPORTS,
    RUNS_OF_REPORT,
    UNHASHED,
    FilesByPath,
    Key,
    SourceFiles,
)
from analysis.store.steps import STEP_TABLES, label
from analysis.store.tables import (
    OF_REPORTS,
    RecordedFiles,
    forget,
    insert,
    recorded_files,
    registered,
)
from model.record.config import RunConfig
from model.record.errors import UserError
from model.record.files import this_process
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


def keep(records: Path, root: Path, study: str) -> bool:
    """Copy a report's records to where a collect reads them; returns whether they had been copied before.

    Raises:
        UserError: they cannot be copied.
    """
    folder = root / study / REPORTS
    try:
        folder.mkdir(parents=True, exist_ok=True)
        names = sorted(path.name for path in folder.iterdir() if scan.OF_REPORT.fullmatch(path.name))
        number = int(names[-1].partition("-")[0]) + 1 if names else 1
        with TemporaryDirectory(prefix=".collecting-", suffix=f".{this_process()}", dir=folder) as scratch:
            copy = shutil.copytree(records, Path(scratch) / "records")
            digest = scan.digest(copy)
            earlier = [folder / name for name in names if name.endswith(f"-{digest}")]
            copy.rename(folder / f"{number:04d}-{digest}")
            for path in earlier:
                shutil.rmtree(path)
    except (OSError, shutil.Error) as error:
        why = error.strerror or "it cannot be copied"
        raise UserError(f"{folder}: {why}: collect it with another --root") from error
    return bool(earlier)


def bring(build: Build, root: Path) -> None:
    """Bring what only reports know up to date, after all that the root has itself."""
    connection = build.connection
    recorded = recorded_files(connection, OF_REPORTS)  # of the reports, and of what came from them
    reports = {report.key: report for report in scan.stat_reports(root, None)}
    if not (recorded or reports):
        return
    own = recorded_files(connection, f"NOT {OF_REPORTS}").keys()
    providers, problems = _providers(root, reports.keys(), own)

    old_reports = {key: files for key, files in recorded.items() if key[1].startswith(f"{REPORTS}/")}
    old_providers = {key: _report_of(files) for key, files in recorded.items() if key not in old_reports}
    if old_providers == providers and _same_files(reports, old_reports):
        return
    for study, place in old_reports.keys() - reports.keys():
        log.warning("%s/%s: its records are gone, and so are the runs that it alone knew", study, place)
    tables = [table for table in selections(connection, None) if table != "step_records"]
    refused = connection.execute(f"SELECT study, run_id FROM quarantine WHERE run_id LIKE '{REPORTS}/%'")
    forget(connection, [*recorded, *refused.fetchall()], (*tables, *STEP_TABLES))
    for report, source in reports.items():
        files = [file._replace(sha256=UNHASHED) for file in source.files]
        insert(connection, "files", file_rows(report, files))
        provided = [key for key, provider in providers.items() if provider == report]
        if provided and report not in problems:
            try:
                with closing(open_records(root.joinpath(*report))) as records:
                    copy_rows(connection, provided, _carried_rows(records, connection, report[0]))
            except (UserError, OSError) as error:
                problems[report] = str(error)
            else:
                (file,) = (file for file in files if file.path.endswith(f"/{RUNS_OF_REPORT}"))
                insert(connection, "files", [row for key in provided for row in file_rows(key, [file])])
        if reason := problems.get(report):
            log.warning(
                "%s/%s: what it alone knows is left out (%s): collect that report again", *report, reason
            )
            row = {"study": report[0], "run_id": report[1], "path": "/".join(report), "reason": reason}
            insert(connection, "quarantine", [row])
    build.changed = True
    label(connection)


def _providers(
    root: Path, reports: Iterable[Key], own: Collection[Key]
) -> tuple[dict[Key, Key], dict[Key, str]]:
    """Which report each run, certificate and node comes from, and why reports cannot be read.

    It is the last report that carries it. What the root has itself comes from none.

    Args:
        reports: in the order in which they were collected.
    """
    providers: dict[Key, Key] = {}
    problems: dict[Key, str] = {}
    for report in reports:
        try:
            carried = _carried_keys(root.joinpath(*report), report[0])
        except (UserError, OSError) as error:
            problems[report] = str(error)
        else:
            providers |= dict.fromkeys(carried.difference(own), report)
    return providers, problems


def _report_of(files: FilesByPath) -> Key:
    """The report that a run, certificate or node came from, by its recorded file."""
    study, place, name, _ = min(files).split("/")
    return study, f"{place}/{name}"


def _same_files(reports: dict[Key, SourceFiles], recorded: RecordedFiles) -> bool:
    """Whether reports have the files that were recorded of them."""
    on_disk = {key: set(report.files) for key, report in reports.items() if report.files}
    return on_disk == {
        key: {file._replace(sha256="") for file in files.values()} for key, files in recorded.items()
    }


def _carried_keys(folder: Path, study: str) -> set[Key]:
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
