"""Checks the records of a report against the run folders that they were read from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from analysis.audit.finding import AuditFinding, ComparedReport, differing
from analysis.query.ask import answer
from analysis.report import output
from analysis.report.carried import RECORDS
from analysis.report.facts import rows
from analysis.store.collect import read_folders
from analysis.store.records import selections
from analysis.store.tables import leave_out

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

# A copy of a folder has other times; when a file went missing says nothing about what was in it.
_MAY_DIFFER = ("mtime_ns", "missing_since")
_PLACE = ("study", "run_id", "key", "certificate", "attempt", "step", "place", "path")
# Runs that the report leaves out, because the study no longer has them.
_REMOVED = "SELECT run_id FROM removed_runs ANTI JOIN run_records USING (study, run_id) WHERE study = $1"


def compare(result: ComparedReport, records: DuckDBPyConnection, study: str | None, root: Path) -> None:
    """Read the run folders again, without touching the workspace's database, and compare every row.

    Args:
        records: the open records; their study's rows are compared.
        root: the workspace.

    Raises:
        UserError: there is no such root, or no run of that study in it.
    """
    with read_folders(root, study) as folders:
        if study:
            removed = records.execute(_REMOVED, [study]).fetchall()
            leave_out(folders, study, [run_id for (run_id,) in removed])
        there = selections(folders, study)
        for table, sql in selections(records, study).items():
            records.register("of_folders", folders.sql(there[table]).to_arrow_table())
            result.findings += _differences(records, table, sql)
            records.unregister("of_folders")
    gone = records.execute("SELECT count(*) FROM files WHERE missing_since IS NOT NULL").fetchall()[0][0]
    if gone:
        result.notes.append(
            f"{gone} files were gone when the report was made: their rows cannot be checked here"
        )


def compare_output(result: ComparedReport, records: DuckDBPyConnection, study: str, root: Path) -> None:
    """Check what a report quotes from its runs' output against their logs, if these are still there."""
    if not output.attached(records):
        return
    gone = 0
    for row in rows(records, output.SQL, study):
        attempt = (row["run_id"], row["attempt"])
        logs = {printed["stream"]: printed for printed in output.read(root, study, [attempt])}
        now = logs.get(row["stream"])
        if now is None:
            gone += 1
        elif (now["text"], now["size_bytes"]) != (row["text"], row["size_bytes"]):
            where = f"{row['run_id']} attempt {row['attempt']}, {row['stream']}.log"
            difference = differing(f"{RECORDS}/{output.FILE}", where, row["text"], now["text"])
            result.findings.append(difference)
    if gone:
        result.notes.append(f"{gone} logs that the report quotes are gone: their words cannot be compared")


def _differences(records: DuckDBPyConnection, table: str, sql: str) -> list[AuditFinding]:
    names = [name for name, *_ in records.execute("DESCRIBE of_folders").fetchall()]
    columns = [name for name in names if name not in _MAY_DIFFER]
    listed = ", ".join(columns)
    carried, read = f"SELECT {listed} FROM ({sql})", f"SELECT {listed} FROM of_folders"
    place = " || ' ' || ".join(f"coalesce({name}::VARCHAR, '')" for name in columns if name in _PLACE)
    findings = []
    for first, second, what in (
        (carried, read, "of its rows are not in the run folders"),
        (read, carried, "rows of the run folders are not in it"),
    ):
        query = f"SELECT {place}, count(*) OVER () FROM ({first} EXCEPT ALL {second}) ORDER BY 1 LIMIT 3"
        if rows := answer(records, query).rows:
            such = "; ".join(str(row[0]).strip() for row in rows)
            findings.append(AuditFinding(f"data/records/{table}.parquet", f"{rows[0][1]} {what}: {such}"))
    return findings
