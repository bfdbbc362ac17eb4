"""Puts the runs that a report carries into a workspace's database. Nothing in a report is trusted."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.report.carried import RECORDS, manifest_with_records
from analysis.store.collect import collect
from analysis.store.database import Build, update
from analysis.store.missing import complete
from analysis.store.records import open_records, selections
from analysis.store.scan import Key
from analysis.store.steps import STAGE, derive, label, stage
from analysis.store.tables import OF_RUNS, OF_STUDIES, OWNER, Known, leave_out, read_ledger, removed_runs
from model.record.errors import UserError
from model.record.files import sha256
from model.record.records import NAME

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


@dataclass(frozen=True)
class Restored:
    """What came out of a report.

    Attributes:
        study: its name.
        added: how many runs were not there before.
        there: how many were, with the same records.
        others: ids of runs that were there with other records, which stay.
    """

    study: str
    added: int
    there: int
    others: list[str]


def restore(report: Path, root: Path) -> Restored:
    """Put the runs of a report into a workspace's database, as runs whose files are gone.

    So a study can be asked, compared and continued where only its report is left. Runs that are there stay as
    they are. Those that the study no longer had are left out.

    Raises:
        UserError: it is no report of one study, it carries no records, or they are not those that it was
            written with. Nothing was restored.
    """
    manifest = manifest_with_records(report)
    study = manifest.study
    if study is None or not NAME.fullmatch(study):
        raise UserError(f"{report} is {manifest.subject}: name the report of one study")
    for path, written in manifest.files.items():
        if path.startswith(f"{RECORDS}/") and (
            not (report / path).is_file() or sha256(report / path) != written
        ):
            raise UserError(f"{report / path} has changed: `runner audit {report}` says what does not match")
    root.mkdir(parents=True, exist_ok=True)
    collect(root)
    with closing(open_records(report / RECORDS)) as records:
        leave_out(records, study, removed_runs(records, study))
        carried = read_ledger(records, f"NOT {OF_STUDIES}")
        runs = sorted(read_ledger(records, OF_RUNS))
        if strange := [key for key in runs if key[0] != study or not NAME.fullmatch(key[1])]:
            raise UserError(f"{report}: {'/'.join(strange[0])!r} is no run of study {study}")

        def work(build: Build) -> Restored:
            here = read_ledger(build.connection)
            if new := carried.keys() - here.keys():
                _add(build, records, study, new)
            added = sum(key in new for key in runs)
            there = [key for key in runs if key in here]
            others = [key[1] for key in there if _hashes(carried[key]) != _hashes(here[key])]
            return Restored(study, added, len(there) - len(others), others)

        return update(root.resolve(), False, work)


def _hashes(files: Known) -> dict[str, tuple[int, str]]:
    """Size and hash by path, but of the plan, which each launch renews."""
    return {
        path: (file.size_bytes, file.sha256) for path, file in files.items() if not path.endswith("/run.json")
    }


def _add(build: Build, records: DuckDBPyConnection, study: str, new: Collection[Key]) -> None:
    import pyarrow as pa

    connection = build.connection
    wanted = pa.table([list(column) for column in zip(*new, strict=True)], ["study", "run_id"])
    connection.register("wanted", wanted)
    stage(connection)
    for table, sql in selections(records, study).items():
        into, key = STAGE if table == "step_records" else table, OWNER.get(table, "(study, run_id)")
        connection.register("carried", records.sql(sql).to_arrow_table())
        connection.execute(
            f"INSERT INTO {into} BY NAME SELECT * FROM carried "
            f"WHERE {key} IN (SELECT (study, run_id) FROM wanted)"
        )
        connection.unregister("carried")
    connection.execute(
        "UPDATE files SET missing_since = $1 "
        "WHERE missing_since IS NULL AND (study, run_id) IN (SELECT (study, run_id) FROM wanted)",
        [datetime.now(UTC).replace(tzinfo=None, microsecond=0)],
    )
    complete(connection)
    derive(connection)
    label(connection)
    connection.unregister("wanted")
    build.changed = True
